"""Gradients of weights, multiplied out or not, and their norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outer:
    """A projection's gradient before it is multiplied out: errors^T inputs, a sum over the tokens of a demonstration.

    A demonstration has tens of tokens where a weight has thousands of rows, so its norm and the step along it cost a
    fraction of what the gradient itself would take to write down.

    >>> outer = Outer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> outer.dense()
    tensor([[3., 4.],
            [6., 8.]])
    """

    errors: Tensor  # [tokens, out] or [draws, tokens, out], of the projection's outputs
    inputs: Tensor | None  # [(draws,) tokens, in]; None: the gradient of a bias, which is the errors' sum

    def dense(self) -> Tensor:
        return self.errors.sum(-2) if self.inputs is None else self.errors.mT @ self.inputs

    def scaled(self, factor: float | Tensor) -> Outer:
        """Multiplied by a number, or by one for each draw."""
        factor = factor[..., None, None] if isinstance(factor, Tensor) and factor.ndim else factor
        return Outer(self.errors * factor, self.inputs)

    def add_to(self, change: Tensor, size: float) -> None:
        """change += size x gradient, in place."""
        if self.inputs is None:
            change.add_(self.errors.sum(-2), alpha=size)
        elif change.ndim == 3:
            change.baddbmm_(self.errors.mT, self.inputs, alpha=size)
        else:
            change.addmm_(self.errors.T, self.inputs, alpha=size)


Gradient = dict[str, Tensor | Outer]  # slot name -> canonical [out, in] or [out]
Dense = dict[str, Tensor]


def dense(gradient: Gradient) -> Dense:
    """Everything multiplied out."""
    return {name: v.dense() if isinstance(v, Outer) else v for name, v in gradient.items()}


def squared_norms(values: Sequence[Tensor | Outer]) -> list[Tensor]:
    """The squared Frobenius norm of each, computed together where shapes agree, each on its own device.

    |E^T X|^2 = <E E^T, X X^T>: two products over the tokens.
    """
    found: list[Tensor | None] = [None] * len(values)
    alike: dict[object, list[int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, Outer):
            shape = None if value.inputs is None else value.inputs.shape
            alike.setdefault((value.errors.shape, shape, value.errors.device), []).append(i)
        else:
            alike.setdefault((value.device, value.dtype), []).append(i)
    for members in alike.values():
        for i, square in zip(members, _squares([values[i] for i in members]), strict=True):
            found[i] = square
    return [square for square in found if square is not None]


def _squares(values: Sequence[Tensor | Outer]) -> Sequence[Tensor]:
    whole = [value for value in values if isinstance(value, Tensor)]
    if whole:
        wide = torch.promote_types(whole[0].dtype, torch.float32)
        return [norm.square() for norm in torch._foreach_norm(whole, dtype=wide)]
    outers = [value for value in values if isinstance(value, Outer)]
    errors = torch.stack([outer.errors for outer in outers])
    if outers[0].inputs is None:
        return errors.sum(1).square().sum(-1).unbind()
    inputs = torch.stack([outer.inputs for outer in outers if outer.inputs is not None])
    # Rounding may leave a zero gradient's sum just below zero.
    return ((errors @ errors.mT) * (inputs @ inputs.mT)).sum((1, 2)).clamp(min=0).unbind()
