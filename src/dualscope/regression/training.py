"""Training of stacked copies: Adam is elementwise, so each copy trains as if it were alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Advance = Callable[[int], None]


def silent(_: int) -> None:
    """Progress that nobody watches."""


def train(
    model: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    rate: float = 1e-3,
    clip: float | None = None,
    decay_to: float | None = None,
    advance: Advance = silent,
    watch: Callable[[int], None] | None = None,
    watch_every: int = 100,
) -> None:
    """Minimise ``loss()``, one value a copy ([copies]), on a fresh draw at each of ``steps``.

    ``clip`` is the largest gradient norm of a copy; ``decay_to`` a last rate, reached along a cosine.
    ``watch`` is called before the first step, then every ``watch_every`` steps, and after the last.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=True)
    parameters = list(model.parameters())
    for step in range(steps):
        if watch is not None and step % watch_every == 0:
            watch(step)
        if decay_to is not None:
            along = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / steps)).item())
            optimizer.param_groups[0]["lr"] = decay_to + (rate - decay_to) * along
        optimizer.zero_grad(set_to_none=True)
        loss().sum().backward()
        if clip is not None:
            clip_copies(parameters, clip)
        optimizer.step()
        advance(1)
    if watch is not None:
        watch(steps)


def clip_copies(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale the gradient of each copy (the first dimension of every parameter) to a norm of at most
    ``largest``.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = sum(g.flatten(1).square().sum(1) for g in gradients)
    assert isinstance(norm, Tensor)
    factor = (largest / norm.sqrt().clamp(min=1e-30)).clamp(max=1)
    finite = norm.isfinite()  # a draw on which deep linear attention overflows teaches that copy nothing
    for gradient in gradients:
        shape = (-1, *[1] * (gradient.dim() - 1))
        gradient.copy_(torch.where(finite.view(shape), gradient * factor.view(shape), 0))
