"""Cosines that survive small changes, and the chunks that keep them within memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 2**24  # elements of one widened tensor: 128 MiB on a device
CPU_CHUNK = 2**18  # 2 MiB: stays in the cache, twice as fast


def wide(values: Tensor) -> Tensor:
    """In float64: the square of a float32 change of 1e-23 is zero in float32, and would read as "no change"."""
    if values.device.type == "mps":  # has no float64
        values = values.cpu()
    return values.to(torch.float64)


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Over the last axis; NaN where either side is exactly zero or not finite.

    >>> cosine(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[4.0, 3.0], [1.0, 1.0]]))
    tensor([0.9600,    nan])
    """
    size = torch.linalg.vector_norm(left, dim=-1) * torch.linalg.vector_norm(right, dim=-1)
    value = (left * right).sum(-1) / size
    return torch.where(torch.isfinite(size), value, torch.nan)


def unit(vectors: Tensor) -> Tensor:
    """Scaled to norm 1 along the last axis; a zero vector becomes NaN."""
    found: Tensor = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return found


def layer_slices(values: Tensor, limit: int | None = None) -> Iterator[slice]:
    """Slices of axis 1 such that a chunk of [queries, layers, ...] has at most `limit` elements (or one layer).

    >>> list(layer_slices(torch.zeros(10, 5, 4), limit=80))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    limit = limit or (CPU_CHUNK if values.device.type == "cpu" else CHUNK)
    layers = values.shape[1]
    size = max(1, limit // max(1, values.numel() // max(1, layers)))
    for start in range(0, layers, size):
        yield slice(start, min(start + size, layers))
