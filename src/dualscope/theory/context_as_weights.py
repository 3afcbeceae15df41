"""The context as a change of weights (Dherin et al. 2025), checked on a real model.

Not one of the identities that are drawn at random: it needs a model and a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.models.reading.context_patch import patch_of
from dualscope.theory.identity import TwoSides

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.models.reading.prefix import Prefix
    from dualscope.tasks.lesson import Lesson

TOLERANCE = 1e-10
BATCH = 8  # the same for both sides, so that their rows stand in the same order


@dataclass(frozen=True)
class Patched:
    """The logits of the model without the context, patched, and of the model with it: [queries, vocabulary]."""

    sides: TwoSides
    parallel: bool  # the MLP does not see the attention, so that the vector alone remains
    gated: bool

    @property
    def in_words(self) -> str:
        if self.parallel:
            return "attention and MLP run side by side: no weight changes, the vector m_c - m alone remains"
        inputs = "both input projections of the gated MLP" if self.gated else "the MLP's input projection"
        return f"dW = W (u_c - u) u^T / |u|^2 on {inputs}, and the vector m_c - m"


def context_patch(model: Model, lesson: Lesson) -> Patched:
    """Both sides on every query of a lesson. Exact for any weights, trained or not; give it a model in float64."""
    prefix = model.prefix(lesson.context)
    patch = patch_of(model, lesson, prefix)
    right = _logits(model, lesson, prefix)
    with patch.applied(model):
        left = _logits(model, lesson, None)
    first = patch.mlps[0]
    return Patched(TwoSides(left, right), first.parallel, len(first.inputs) > 1)


@torch.no_grad()
def _logits(model: Model, lesson: Lesson, prefix: Prefix | None) -> Tensor:
    """What the unembedding gives where labels are predicted, in the order in which the queries are read."""
    seen: list[Tensor] = []

    def keep(_: torch.nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output.reshape(-1, output.shape[-1]))

    handle = model.hf.get_output_embeddings().register_forward_hook(keep)
    try:
        model.read(lesson, prefix, batch_size=BATCH)
    finally:
        handle.remove()
    return torch.cat(seen)
