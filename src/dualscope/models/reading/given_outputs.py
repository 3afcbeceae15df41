"""Reading with attention outputs that are given: what would the model answer if attention had written this?

At the read position the residual stream needs only the MLPs once every layer's attn_out is given, so any change of it
can be tried without a context, exactly. Queries are read where they stand in the context: where positions are absolute,
the stream begins with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from dualscope.models.architecture.parts import output_projection
from dualscope.models.capture.block_hooks import put
from dualscope.models.reading.prefix import Prefix

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


# Reading with head outputs that are given, on any of a query's own tokens or of the context's: the whole model runs.
#
# `replayed` gives attn_out at the read position and needs no attention above it. A splice puts what heads handed to
# the output projection in one run into another run, and everything behind it, attention too, follows.


HeadOutputs = dict[str, list[Tensor]]
"""By query and layer: what the heads handed to the output projection, [own tokens, heads x head_dim]."""


@dataclass(frozen=True)
class NotedHeads:
    """Notes what heads give on every own token of the queries that are read."""

    lengths: Mapping[str, int]  # own tokens of each query
    found: HeadOutputs = field(default_factory=dict)

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if session.answer is not None:
            return

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            batch = len(session.query_ids)
            whole = args[0].view(batch, -1, args[0].shape[-1])
            for row, query in zip(whole, session.query_ids, strict=True):
                own = row[session.lead : session.lead + self.lengths[query]].detach().clone()
                self.found.setdefault(query, []).append(own)

        stack.callback(output_projection(model, layer).register_forward_pre_hook(hook).remove)


@dataclass(frozen=True)
class SplicedHeads:
    """Puts given head outputs in the place of the model's own: in all layers and heads or some, on all own tokens, on
    the one where the label is predicted, or on those before it. On a label's own tokens the model is left to itself.
    """

    given: HeadOutputs
    layers: frozenset[int] | None = None  # None: all
    tokens: Literal["own", "read", "before"] = "own"
    heads: Tensor | None = None  # [layers, heads], which of them; None: all

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if session.answer is not None or (self.layers is not None and layer not in self.layers):
            return
        if self.heads is not None and not self.heads[layer].any():
            return

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            new = args[0].clone()
            whole = new.view(len(session.query_ids), -1, new.shape[-1])
            for i, query in enumerate(session.query_ids):
                rows = self.given[query][layer].to(whole)
                kept = {"own": slice(None), "read": slice(-1, None), "before": slice(None, -1)}[self.tokens]
                place, rows = whole[i, session.lead : session.lead + len(rows)][kept], rows[kept]
                if self.heads is None:
                    place.copy_(rows)
                else:
                    count = self.heads.shape[1]
                    chosen = self.heads[layer].to(whole.device)
                    place.unflatten(-1, (count, -1))[:, chosen] = rows.unflatten(-1, (count, -1))[:, chosen]
            return new, *args[1:]

        stack.callback(output_projection(model, layer).register_forward_pre_hook(hook).remove)


Places = Mapping[int, list[Tensor]]
"""By place in the context: what heads give there, by layer [heads x head_dim]."""


@torch.no_grad()
def spliced_prefix(
    model: Model, context: tuple[int, ...], given: Places, layers: frozenset[int] | None = None
) -> Prefix:
    """The context encoded with given head outputs at some of its tokens, in all layers or some."""
    with _given_in_context(model, given, layers):
        return model.prefix(context)


@contextmanager
def _given_in_context(model: Model, given: Places, layers: frozenset[int] | None) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in range(model.n_layers):
            if layers is not None and layer not in layers:
                continue

            def hook(_: nn.Module, args: tuple[Tensor, ...], layer: int = layer) -> tuple[Tensor, ...]:
                new = args[0].clone()
                whole = new.view(-1, new.shape[-1])  # one sequence
                for place, outputs in given.items():
                    whole[place] = outputs[layer].to(whole)
                return new, *args[1:]

            stack.callback(output_projection(model, layer).register_forward_pre_hook(hook).remove)
        yield
