"""Kendall's tau-b of many pairs of rankings at once, in O(n log^2 n) each and without a matrix of all pairs."""

import torch
from torch import Tensor

BLOCK = 16  # shorter runs are compared all with all


def tau_b(left: Tensor, right: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Along the last axis: [..., items] twice -> [...]. NaN where a side is constant or not finite.

    Items that are ``hidden`` (boolean, of the same shape) do not count.

    >>> tau_b(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0])).item()
    0.6666666666666666
    """
    shape, items = left.shape[:-1], left.shape[-1]
    if items < 2 or not shape.numel():
        return torch.full(shape, torch.nan, dtype=torch.float64, device=left.device)
    hidden = torch.zeros_like(left, dtype=torch.bool) if hidden is None else hidden
    finite = ((torch.isfinite(left) & torch.isfinite(right)) | hidden).all(-1)
    # Put below all others on both sides, hidden items are tied among themselves and in order with all that count.
    left, right = (values.masked_fill(hidden, -torch.inf) for values in (left, right))
    out = hidden.sum(-1).double().reshape(-1)
    ordered = out * (items - out)
    x, y = left.reshape(-1, items), right.reshape(-1, items)
    by_y = y.argsort(dim=-1, stable=True)
    n_y = _tied(y.gather(-1, by_y))
    order = by_y.gather(-1, x.gather(-1, by_y).argsort(dim=-1, stable=True))  # by x, ties by y
    x, y = x.gather(-1, order), y.gather(-1, order)
    n_x, n_both = _tied(x), _tied(x, y)
    pairs = items * (items - 1) / 2
    agreement = pairs - n_x - n_y + n_both - 2 * inversions(y) - ordered
    counted = pairs - ordered  # ties among hidden items are in n_x and n_y too, and cancel
    tau = agreement / ((counted - n_x) * (counted - n_y)).sqrt()
    return torch.where(finite, tau.reshape(shape), torch.nan)


def _tied(*ordered: Tensor) -> Tensor:
    """Pairs that are equal in all of these, which are sorted: [rows]."""
    rows, items = ordered[0].shape
    place = torch.arange(items, device=ordered[0].device).expand(rows, items)
    new = torch.ones_like(ordered[0], dtype=torch.bool)
    new[:, 1:] = torch.stack([values[:, 1:] != values[:, :-1] for values in ordered]).any(0)
    start = torch.where(new, place, 0).cummax(-1).values
    return (place - start).sum(-1).double()  # each item is tied with those before it in its run


def inversions(values: Tensor) -> Tensor:
    """Pairs that stand in descending order, [rows, items] -> [rows], by a merge sort of all rows side by side.

    >>> inversions(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 2.0]]))
    tensor([2., 0.], dtype=torch.float64)
    """
    rows, items = values.shape
    size = BLOCK
    while size < items:
        size *= 2
    padded = values.new_full((rows, size), torch.inf)  # at the end and largest: adds no inversion
    padded[:, :items] = values
    runs = padded.reshape(rows, -1, BLOCK)
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=values.device).triu(1)
    found = ((runs[..., :, None] > runs[..., None, :]) & later).flatten(1).sum(-1)
    length = BLOCK
    while length < size:
        runs = runs.sort(-1).values.reshape(rows, -1, 2, length)
        first, second = runs[:, :, 0].contiguous(), runs[:, :, 1].contiguous()
        not_larger = torch.searchsorted(first, second, right=True)
        found = found + (length - not_larger).flatten(1).sum(-1)
        length *= 2
        runs = runs.reshape(rows, -1, length)
    return found.double()
