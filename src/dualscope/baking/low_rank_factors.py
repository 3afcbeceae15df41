"""A change of a weight matrix as the product of two thin ones: exactly where its rank allows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualscope.core.errors import InputError


@dataclass(frozen=True)
class LowRankFactors:
    """dW = up @ down, and how much of dW it is.

    >>> factors = factored(torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0, 4.0])))
    >>> factors.rank, (factors.up @ factors.down).round(decimals=4).tolist(), round(factors.lost, 4)
    (1, [[3.0, 0.0, 4.0], [6.0, 0.0, 8.0]], 0.0)
    """

    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank]
    whole_square: float  # |dW|^2
    lost_square: float  # |dW - up @ down|^2

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def lost(self) -> float:
        """|dW - up @ down| / |dW|; 0 of a change that is none."""
        return (self.lost_square / self.whole_square) ** 0.5 if self.whole_square else 0.0

    def cut_to(self, rank: int) -> LowRankFactors:
        """Its ``rank`` largest singular values alone: the nearest product of that rank."""
        if rank < 1:
            raise InputError(f"the rank of an adapter is at least 1, found {rank}")
        # The factors share the singular values' roots, so that a row's squared norm is the singular value.
        cut = self.down[rank:].double().square().sum(-1).square().sum()
        return replace(self, down=self.down[:rank], up=self.up[:, :rank], lost_square=self.lost_square + float(cut))


def factored(change: Tensor) -> LowRankFactors:
    """[out, in] -> its factors of the numerical rank: singular values above what rounding leaves in the change's dtype.

    A change that is zero has rank 1, because LoRA has no rank 0, and factors of zeros.
    """
    eye = torch.eye(change.shape[1], dtype=change.dtype, device=change.device)
    return product_factored(change, eye, change.dtype)


def product_factored(left: Tensor, right: Tensor, computed: torch.dtype = torch.float32) -> LowRankFactors:
    """The same of left @ right, [out, inner] and [inner, in], without making the product where ``inner`` is small."""
    left, right = left.detach().cpu().double(), right.detach().cpu().double()
    inner, shape = left.shape[1], (left.shape[0], right.shape[1])
    if inner < min(shape):
        (outer, left_core), (rows, right_core) = torch.linalg.qr(left), torch.linalg.qr(right.T)
        u, sizes, vt = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
        u, vt = outer @ u, vt @ rows.T
    else:
        u, sizes, vt = torch.linalg.svd(left @ right, full_matrices=False)
    noise = max(shape) * torch.finfo(computed).eps * float(sizes[0])
    kept = max(1, int((sizes > noise).sum()))
    squares, root = sizes.square(), sizes[:kept].sqrt()
    return LowRankFactors(
        (root[:, None] * vt[:kept]).float(),
        (u[:, :kept] * root).float(),
        float(squares.sum()),
        float(squares[kept:].sum()),
    )
