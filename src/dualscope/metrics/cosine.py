"""Cosines that survive small changes, and the chunks that keep them within memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 2**24  # elements of one widened tensor: 128 MiB


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
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def layer_slices(shape: torch.Size, limit: int = CHUNK) -> Iterator[slice]:
    """Slices of axis 1 such that each chunk of a [queries, layers, ...] tensor stays under `limit` elements.

    >>> list(layer_slices(torch.Size([10, 5, 4]), limit=80))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    layers = shape[1]
    one = max(1, shape.numel() // max(1, layers))
    size = max(1, limit // one)
    for start in range(0, layers, size):
        yield slice(start, min(start + size, layers))
