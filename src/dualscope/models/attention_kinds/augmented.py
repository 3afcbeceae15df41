"""Augmented attention (Ren & Liu): a nonlinear part in the values, the keys, or both."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dualscope.models.attention_kinds.kind import KINDS, AttentionKind
from dualscope.models.parts import Qkv

_ADAPTED: dict[str, tuple[Qkv, ...]] = {"g1": ("value",), "g2": ("key",), "both": ("key", "value")}


@KINDS.register("augmented")
class Augmented(AttentionKind):
    """Values g1(W_V x) and keys g2(W_K x), where g(W x) = W x + c W2 relu(W1 x): data augmentation,
    learned.
    """

    parts: Literal["g1", "g2", "both"] = "both"
    c: float = Field(default=1.0, allow_inf_nan=False)
    hidden: int = Field(default=16, ge=1)

    @property
    def adapted(self) -> tuple[Qkv, ...]:
        return _ADAPTED[self.parts]


class Adapter(nn.Module):
    """c W2 relu(W1 x). W2 starts at zero, so that a model begins as it would without it.

    With ``copies`` it is that many independent ones, and the input's first dimension says which.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int,
        c: float,
        copies: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        lead = () if copies is None else (copies,)
        self.c = c
        self.first = nn.Parameter(torch.randn(*lead, hidden, inputs, generator=generator) * inputs**-0.5)
        self.second = nn.Parameter(torch.zeros(*lead, outputs, hidden))

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]; [copies, ..., inputs] -> [copies, ..., outputs]."""
        if self.first.dim() == 2:
            return self.c * torch.relu(inputs @ self.first.mT) @ self.second.mT
        flat = inputs.reshape(len(self.first), -1, inputs.shape[-1])
        return (self.c * torch.relu(flat @ self.first.mT) @ self.second.mT).reshape(*inputs.shape[:-1], -1)
