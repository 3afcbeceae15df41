"""The lasso at every length of a prompt, by coordinate descent on many prompts at once."""

import torch
from torch import Tensor


def lasso_weights(inner: Tensor, moments: Tensor, penalty: Tensor, sweeps: int = 200) -> Tensor:
    """argmin 1/2 w^T S w - b^T w + penalty |w|_1: S [..., d, d], b [..., d], penalty [...] -> [..., d]."""
    weights = torch.zeros_like(moments)
    scale = inner.diagonal(dim1=-2, dim2=-1)
    for _ in range(sweeps):
        for j in range(moments.shape[-1]):
            rest = moments[..., j] - (inner[..., j, :] * weights).sum(-1) + scale[..., j] * weights[..., j]
            soft = rest.sign() * (rest.abs() - penalty).clamp(min=0)
            weights[..., j] = torch.where(scale[..., j] > 0, soft / scale[..., j].clamp(min=1e-300), 0.0)
    return weights


def lasso(x: Tensor, y: Tensor, alpha: float, sweeps: int = 200) -> Tensor:
    """The guess for every x from the examples before it, with scikit-learn's objective (1/2k) |X w - y|^2 + alpha
    |w|_1: x [..., points, d], y [..., points] -> [..., points].
    """
    x, y = x.detach().cpu().double(), y.detach().cpu().double()
    inner = (x.unsqueeze(-1) * x.unsqueeze(-2)).cumsum(-3)[..., :-1, :, :]
    moments = (x * y.unsqueeze(-1)).cumsum(-2)[..., :-1, :]
    counts = torch.arange(1, x.shape[-2], dtype=x.dtype).expand(inner.shape[:-2])
    weights = lasso_weights(inner, moments, alpha * counts, sweeps)
    guesses = (weights * x[..., 1:, :]).sum(-1)
    return torch.cat([torch.zeros_like(guesses[..., :1]), guesses], -1)
