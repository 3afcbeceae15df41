"""The places of a model where a learner may put a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dualscope.models.model import Model


class Slot(Protocol):
    """A weight, a bias, or the slice of a fused one (`dualscope.models.architecture.parts.Part`), or `Whole`."""

    @property
    def name(self) -> str: ...
    @property
    def layer(self) -> int | None: ...
    @property
    def parameter(self) -> str: ...
    def view(self, tensor: Tensor) -> Tensor: ...
    def get(self, tensor: Tensor) -> Tensor: ...
    def add_(self, tensor: Tensor, change: Tensor) -> None: ...


@dataclass(frozen=True)
class Whole:
    """A parameter as it is."""

    parameter: str

    @property
    def name(self) -> str:
        return self.parameter

    @property
    def layer(self) -> int | None:
        return layer_of(self.parameter)

    def view(self, tensor: Tensor) -> Tensor:
        return tensor

    def get(self, tensor: Tensor) -> Tensor:
        return tensor

    def add_(self, tensor: Tensor, change: Tensor) -> None:
        tensor.add_(change.to(tensor.dtype))


def slots_of(model: Model) -> list[Slot]:
    """Every name that a delta of this model may use: the key and value parts, and all parameters."""
    return [*model.parts(), *(Whole(name) for name, _ in model.hf.named_parameters())]


def layer_of(name: str) -> int | None:
    """The layer that a weight belongs to, None outside the blocks.

    >>> layer_of("transformer.h.3.mlp.c_fc.weight"), layer_of("lm_head.weight")
    (3, None)
    """
    return next((int(word) for word in name.split(".") if word.isdigit()), None)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that changes are kept in: float32, or the model's own if that is wider.

    >>> wide(torch.bfloat16), wide(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def is_low(model: Model) -> bool:
    """Whether the weights have 16 bits, too few to hold a small change."""
    return bool(wide(model.dtype) != model.dtype)


# Gradients of weights, multiplied out or not, and their norms.


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
