"""The places of a model where a learner may put a change."""

from __future__ import annotations

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
