"""Linear probes: what can be read off a residual stream by one linear map, fitted on some prompts, judged on others."""

import torch
from torch import Tensor

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
