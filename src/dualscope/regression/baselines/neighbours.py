"""Nearest neighbours and the mean target, at every length of a prompt."""

import torch
from torch import Tensor


def nearest(x: Tensor, y: Tensor, k: int = 3) -> Tensor:
    """The mean target of the (up to) k nearest examples before each x: [..., points, d], [..., points] -> [..., points]

    The first guess, of no examples, is 0.
    """
    points = x.shape[-2]
    apart = torch.cdist(x, x)
    unseen = torch.ones(points, points, dtype=torch.bool, device=x.device).triu()
    found = apart.masked_fill(unseen, torch.inf).topk(min(k, points), largest=False)
    kept = found.values.isfinite().to(y.dtype)
    values = y.unsqueeze(-2).expand(*y.shape[:-1], points, points).gather(-1, found.indices)
    return (values * kept).sum(-1) / kept.sum(-1).clamp(min=1)
