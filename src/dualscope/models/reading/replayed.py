"""Reading with attention outputs that are given: what would the model answer if attention had written this?

At the read position the residual stream needs only the MLPs once every layer's attn_out is given, so any change of it
can be tried without a context, exactly. Queries are read where they stand in the context: where positions are absolute,
the stream begins with them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.models.capture.activation_edits import put
from dualscope.models.head_outputs import output_projection

if TYPE_CHECKING:
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


@dataclass(frozen=True)
class GivenAttention:
    """The output of every layer's attention at the read row of every query, in place of the model's own."""

    rows: dict[str, int]  # where each query stands in what is given
    attn_out: Tensor  # [queries, layers, width]

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if session.answer is not None:  # on a label's own tokens the model is left to itself
            return

        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            at = [self.rows[query] for query in session.query_ids]
            given = self.attn_out[at, layer].to(output)
            whole = output.view(len(at), -1, output.shape[-1])
            return put(whole, session.acts, lambda _rows: given).view(output.shape)

        stack.callback(output_projection(model, layer).register_forward_hook(hook).remove)


@torch.no_grad()
def replayed(model: Model, lesson: Lesson, attn_out: Tensor) -> Tensor:
    """The label log-probabilities of a lesson's queries without a context, attn_out given: [queries, classes]."""
    rows = {query: i for i, query in enumerate(lesson.query_ids)}
    with model.intervened(GivenAttention(rows, attn_out)):
        return model.read(lesson, position_offset=len(lesson.context) - len(lesson.bos)).label_logprobs
