"""Adam, with the updates of matrices made orthogonal (Muon; Jordan et al. 2024).

Before in-context learning appears, training waits in a plateau from which a few directions of the attention's matrices
have to grow. A step whose singular values are all alike moves those as far as any other. Such steps are as long when
little is left to learn, so weights tremble: what is kept is their running mean (Polyak & Juditsky 1992).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's: all singular values near 1 after five steps
STEPS = 5


@dataclass(frozen=True)
class Block:
    """Where a matrix lies in a row of weights: ``rows`` x ``columns`` entries from ``start`` on, ``stride`` apart."""

    start: int
    rows: int
    columns: int
    stride: int

    def view(self, flat: Tensor) -> Tensor:
        """[copies, weights] -> [copies, rows, columns], the same memory."""
        shape, strides = (len(flat), self.rows, self.columns), (flat.stride(0), self.stride, 1)
        return flat.as_strided(shape, strides, flat.storage_offset() + self.start)


def orthogonal(matrices: Tensor) -> Tensor:
    """U V^T for each U S V^T, nearly: singular values between 0.7 and 1.2. [..., rows, columns]"""
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[-2] <= matrices.shape[-1]
    found = (matrices if wide else matrices.mT).flatten(0, -3)
    found = found.to(torch.bfloat16 if found.is_cuda else found.dtype)
    found = found / (found.float().flatten(-2).norm(dim=-1)[..., None, None].to(found) + 1e-7)
    for _ in range(STEPS):
        square = torch.bmm(found, found.mT)
        mixed = torch.baddbmm(square, square, square, beta=b, alpha=c)
        found = torch.baddbmm(found, mixed, found, beta=a)
    result: Tensor = (found if wide else found.mT).to(matrices).view(matrices.shape)
    return result


def adams(
    gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor, betas: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Adam's step at a rate of 1, its two means moved on; and Nesterov's momentum, which matrices take."""
    first, second = betas
    mean.lerp_(gradient, 1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    seen, seen_square = 1 - first**step, 1 - second**step
    return (mean / seen) / ((square / seen_square).sqrt() + 1e-8), gradient.lerp(mean, first)


def moved(flat: Tensor, update: Tensor, average: Tensor, rate: Tensor, share: Tensor) -> None:
    """A step of the weights, and of their running mean."""
    flat.sub_(update * rate)
    average.lerp_(flat, share)


class SpectralAdam(torch.optim.Optimizer):
    """Adam for one parameter [copies, weights], but for its ``blocks``, whose momentum is made orthogonal.

    An orthogonal step is scaled to the root mean square of Adam's, so that one rate suits both (Liu et al. 2025).
    `averaged` weights are a mean over about the last part ``average`` of the steps so far; 0: the weights themselves.
    """

    def __init__(
        self,
        flat: torch.nn.Parameter,
        blocks: Sequence[Block],
        lr: float | Tensor,
        betas: tuple[float, float],
        average: float = 0.0,
        compiled: bool = False,
    ) -> None:
        super().__init__([flat], {"lr": lr, "betas": betas, "fused": True})
        self.average = average
        # A compiler reads and writes the weights once, where a sum, a root and a quotient do so each.
        self._adams = torch.compile(adams, dynamic=False) if compiled else adams
        self._moved = torch.compile(moved, dynamic=False) if compiled else moved
        self.alike: dict[tuple[int, int], list[Block]] = {}
        for block in blocks:
            self.alike.setdefault((block.rows, block.columns), []).append(block)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (flat,) = group["params"]
        state = self.state[flat]
        if not state:
            state["step"] = torch.zeros((), device=flat.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(flat), torch.zeros_like(flat)
            state["average"] = flat.detach().clone()
        state["step"] += 1
        update, ahead = self._adams(flat.grad, state["exp_avg"], state["exp_avg_sq"], state["step"], group["betas"])
        for (rows, columns), blocks in self.alike.items():
            turned = orthogonal(torch.stack([block.view(ahead) for block in blocks]))
            turned = turned * (0.2 * max(rows, columns) ** 0.5)
            for block, one in zip(blocks, turned, strict=True):
                block.view(update).copy_(one)
        share = 1 / (self.average * state["step"]).clamp(min=1)
        rate = torch.as_tensor(group["lr"], device=flat.device)  # of a number, a compiler would make a constant
        self._moved(flat.detach(), update, state["average"], rate, share)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the parameter holds its running mean."""
        (flat,) = self.param_groups[0]["params"]
        own = flat.detach().clone()
        self.keep_average()
        try:
            yield
        finally:  # a training that is interrupted while it is watched goes on from its own weights
            flat.data.copy_(own)

    def keep_average(self) -> None:
        """At the end of a training: the running mean takes the parameter's place."""
        (flat,) = self.param_groups[0]["params"]
        if self.state[flat]:
            flat.data.copy_(self.state[flat]["average"])
