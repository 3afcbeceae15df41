"""Linear probes: what can be read off a residual stream by one linear map, fitted on some prompts, judged on others."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

ROWS = 64  # for each channel: with few, a probe of so small a penalty knows them by heart
PENALTY = 1e-6  # what is looked for may stand where a residual stream hardly varies


def fit_probe(states: Tensor, wanted: Tensor, penalty: float = PENALTY) -> Tensor:
    """Ridge from states [copies, rows, width] to wanted [copies, rows, outputs], with a constant: [copies, width + 1,
    outputs], float64. The penalty is a share of the states' mean square.
    """
    inputs = _with_constant(states)
    inner = inputs.mT @ inputs
    width = inner.shape[-1]
    size = inner.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    found: Tensor = torch.linalg.solve(
        inner + penalty * size * torch.eye(width, dtype=inner.dtype, device=inner.device), inputs.mT @ wanted.double()
    )
    return found


def read_probe(states: Tensor, probe: Tensor) -> Tensor:
    """[copies, rows, width] -> [copies, rows, outputs], float64."""
    return _with_constant(states) @ probe


def explained(guess: Tensor, wanted: Tensor) -> Tensor:
    """1 - mean squared error / variance, over rows and outputs: [copies]."""
    wanted = wanted.double()
    left = (guess - wanted).square().sum((1, 2))
    return 1 - left / (wanted - wanted.mean(1, keepdim=True)).square().sum((1, 2)).clamp(min=1e-300)


def probed(states: Tensor, wanted: Tensor, penalty: float = PENALTY) -> Tensor:
    """``explained`` on the second half of the rows by a probe that was fitted on the first: [copies]."""
    half = states.shape[1] // 2
    probe = fit_probe(states[:, :half], wanted[:, :half], penalty)
    return explained(read_probe(states[:, half:], probe), wanted[:, half:])


def encoded(mine: Tensor, none: Tensor) -> bool:
    """Whether a quantity is read off every trained copy, and off its untrained twin less than half as well.

    >>> [encoded(torch.tensor([0.9, a]), torch.tensor([0.4, b])) for a, b in [(0.8, 0.3), (0.7, 0), (0.8, 0.4)]]
    [True, False, False]
    """
    return bool((mine >= 0.8).all() and (none < mine / 2).all())


def _with_constant(states: Tensor) -> Tensor:
    states = states.double()
    return torch.cat([states, torch.ones_like(states[..., :1])], -1)


# Akyürek et al.'s probe: a weight for every position, and a small network on the states' weighted mean.
#
# What a transformer encodes need not stand at one token, nor be a linear map away: the paper finds weights and moments
# encoded nonlinearly, in late layers. A residual stream varies ten thousand times more in some directions than in
# others, and a probe that is fitted by gradient descent would learn of the latter last: it sees them all alike
# (`whitening`).


HIDDEN = 512
RATE = 1e-2
BATCH = 128  # prompts a step
HARDLY = 1e-4  # of the mean variance
AT_ONCE = 16  # steps whose states are computed together

Draw = Callable[[int, int], tuple[Tensor, Tensor]]
"""(number, rows) -> fresh states [places, rows, tokens, width], and what is wanted [quantities, places, rows, d]."""


class PooledProbes(nn.Module):
    """A probe for every quantity at every place, each with weights of its own; ``fresh`` states say how states vary."""

    middle: Tensor
    turn: Tensor

    def __init__(self, quantities: int, fresh: Tensor, outputs: int) -> None:
        super().__init__()
        places, _, tokens, width = fresh.shape
        for name, value in zip(("middle", "turn"), whitening(fresh), strict=True):
            self.register_buffer(name, value)
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> nn.Parameter:
            weights = torch.randn(quantities * places, *shape, generator=generator)
            return nn.Parameter(weights * shape[0] ** -0.5)

        self.position = nn.Parameter(torch.zeros(quantities, places, tokens))
        self.first, self.second = drawn(width, HIDDEN), drawn(HIDDEN, outputs)
        self.first_bias = nn.Parameter(torch.zeros(quantities * places, 1, HIDDEN))
        self.second_bias = nn.Parameter(torch.zeros(quantities * places, 1, outputs))

    def forward(self, states: Tensor) -> Tensor:
        """[places, rows, tokens, width] -> [quantities, places, rows, outputs]."""
        pooled = torch.einsum("qpt,prtw->qprw", self.position.softmax(-1), states)
        pooled = (pooled - self.middle) @ self.turn
        before = torch.baddbmm(self.first_bias, pooled.flatten(0, 1), self.first)
        found = torch.baddbmm(self.second_bias, torch.nn.functional.gelu(before), self.second)
        return found.view(*pooled.shape[:-1], -1)


def whitening(states: Tensor) -> tuple[Tensor, Tensor]:
    """The mean [places, 1, width] of states [places, rows, tokens, width], and the map [places, width, width] after
    which what is left of them varies alike in all directions; in those in which it hardly varies at all, less.
    """
    rows = states.flatten(1, 2)
    middle = rows.mean(1, keepdim=True)
    covariance = (rows - middle).mT @ (rows - middle) / rows.shape[1]
    sizes, directions = torch.linalg.eigh(covariance.double().cpu())
    least = HARDLY * sizes.mean(1, keepdim=True) + 1e-30
    turn = (directions * (sizes.clamp(min=0) + least).rsqrt().unsqueeze(1)) @ directions.mT
    return middle, turn.to(states)


def read_by_networks(draw: Draw, steps: int, judged: int) -> Tensor:
    """The share of variance that probes explain on ``judged`` prompts of their own: [quantities, places].

    Every step of the fit sees prompts that no other has seen, so a probe knows nothing by heart.
    """
    fresh, answers = draw(1, BATCH * min(AT_ONCE, steps))
    middle, spread = answers.mean(2, keepdim=True), answers.std((2, 3), keepdim=True).clamp(min=1e-30)
    probes = PooledProbes(len(answers), fresh, answers.shape[-1]).to(fresh)
    optimizer = torch.optim.Adam(probes.parameters(), lr=RATE, fused=fresh.is_cuda)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1)
    for step in range(steps):
        if step % AT_ONCE == 0 and step:
            fresh, answers = draw(1 + step // AT_ONCE, BATCH * min(AT_ONCE, steps - step))
        rows = slice(BATCH * (step % AT_ONCE), BATCH * (step % AT_ONCE + 1))
        optimizer.zero_grad(set_to_none=True)
        missed = probes(fresh[:, rows]) - (answers[:, :, rows] - middle) / spread
        missed.square().mean((2, 3)).sum().backward()
        optimizer.step()
        rates.step()
    states, wanted = draw(0, judged)
    with torch.no_grad():
        found = (probes(states) * spread + middle).double()
    return explained(found.flatten(0, 1), wanted.flatten(0, 1)).view(wanted.shape[:2])
