"""The fine-tuned layer as linear attention to its training tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from dualscope.descent.log import Log

KeyOrValue = Literal["key", "value"]


@dataclass(frozen=True)
class Dual:
    """The update of the key and value projections in dual form: dW = E^T X', a sum over training tokens.

    So the fine-tuned projection of a query's input x is W x + sum_t e_t (x'_t . x): linear attention whose keys
    are the inputs x'_t that the training tokens had at their step, and whose values are the errors e_t.
    """

    inputs: Tensor  # X' [layers, tokens, width]
    errors: dict[str, Tensor]  # E by role, [layers, tokens, out]
    demonstrations: Tensor  # [tokens]: which demonstration a token is of
    positions: Tensor  # [tokens]: its place in the training sequence, BOS included

    @classmethod
    def of(cls, log: Log) -> Dual:
        """From the log of a learner on a bench that wanted ``dual``."""
        records = log.records
        if "dual_inputs" not in records:
            raise InputError(
                'no dual form was recorded: ask for it with Bench(model, lesson, want=frozenset({"dual"})) and take a '
                "learner that changes keys and values by gradients"
            )
        return cls(
            records["dual_inputs"],
            {"key": records["errors_key"], "value": records["errors_value"]},
            records["dual_demonstrations"],
            records["dual_positions"],
        )

    def weight(self, layer: int, role: KeyOrValue) -> Tensor:
        """The primal: the change of the weight, [out, width]."""
        return self.errors[role][layer].mT @ self.inputs[layer]

    def bias(self, layer: int, role: KeyOrValue) -> Tensor:
        """The change of the bias, where the projection has one: the sum of the errors, [out]."""
        return self.errors[role][layer].sum(0)

    def scores(self, inputs: Tensor) -> Tensor:
        """How much a query attends to each training token, x'_t . x: [queries, layers, tokens].

        ``inputs`` [queries, layers, width] is what the trace holds as ``extras["layer_inputs"]``.
        """
        return torch.einsum("ltw,qlw->qlt", self.inputs, inputs.to(self.inputs))

    def change(self, inputs: Tensor, role: KeyOrValue) -> Tensor:
        """What attention to the training tokens adds to a projection, bias left out: [queries, layers, out]."""
        return torch.einsum("qlt,lto->qlo", self.scores(inputs), self.errors[role])

    def attention(self, inputs: Tensor, role: KeyOrValue) -> Tensor:
        """The norm of what each training token contributes, |e_t| |x'_t . x|: [queries, layers, tokens]."""
        found: Tensor = self.scores(inputs).abs() * self.errors[role].norm(dim=-1)
        return found
