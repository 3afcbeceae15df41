"""How alike two attention maps are, over the query's own tokens.

The formulas take scores as [queries, layers, heads, tokens] with zeros where nothing is seen (see
`seen_scores`) and return [queries, layers, heads].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.spec import ZERO_SHOT, LearnerSpec
from dualscope.core.statistics import COSINE
from dualscope.metrics.case import Case, PerQuery, Values
from dualscope.metrics.cosine import cosine, layer_slices, wide
from dualscope.metrics.metric import Function, by_layers, metric
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.learners.learner import Result


def own_tokens(lengths: Tensor, tokens: int) -> Tensor:
    """Which columns are a query's own: [queries, 1, 1, tokens], boolean.

    >>> own_tokens(torch.tensor([1, 3]), 3)[:, 0, 0].int()
    tensor([[0, 0, 1],
            [1, 1, 1]], dtype=torch.int32)
    """
    column = torch.arange(tokens, device=lengths.device)
    return (column >= tokens - lengths[:, None])[:, None, None]


def visible(zero_shot: Trace, layers: slice = slice(None)) -> Tensor:
    """What the read position can see of the query's own tokens: [queries, layers, heads, tokens], boolean.

    Inside a query's own tokens, NaN in the zero-shot trace is a sliding window's mask.
    """
    scores = zero_shot.attn_scores[:, layers].to(zero_shot.device)
    return own_tokens(zero_shot.lengths, scores.shape[-1]) & ~scores.isnan()


def seen_scores(trace: Trace, own: Tensor, layers: slice = slice(None)) -> Tensor:
    """Scores in float64 with zeros where nothing is seen (a NaN elsewhere stays, and makes the cosine NaN)."""
    scores = wide(trace.attn_scores[:, layers].to(trace.device))
    return scores.masked_fill(~own.to(scores.device), 0)


def change_undefined(case: Case) -> slice:
    """Layers whose change of scores is undefined by construction.

    Where positions are relative, layer 0 has the same inputs and the same distances with a context and without.
    """
    return slice(0, 1 if case.relative_positions else 0)


@dataclass(frozen=True)
class Maps:
    """Some layers' scores of zero-shot, the reference and the learner; what a formula may ask for by name."""

    case: Case
    layers: slice

    @cached_property
    def own(self) -> Tensor:
        return visible(self.case.zero_shot, self.layers)

    def scores(self, trace: Trace) -> Tensor:
        return seen_scores(trace, self.own, self.layers)

    @cached_property
    def z(self) -> Tensor:
        return self.scores(self.case.zero_shot)

    @cached_property
    def c(self) -> Tensor:
        return self.scores(self.case.reference)

    @cached_property
    def g(self) -> Tensor:
        return self.scores(self.case.trace)

    @cached_property
    def others(self) -> dict[LearnerSpec, Tensor]:
        """Of other gradient learners."""
        return {other.learning: self.scores(other.trace) for other in _gradients(self.case)}

    @property
    def undefined(self) -> int:
        """How many of these layers, from the first on, have a change that is undefined by construction."""
        return 1 if self.case.relative_positions and self.layers.start == 0 else 0


def _by_layers(case: Case, formulas: Mapping[str, Function]) -> Iterator[PerQuery]:
    return by_layers(case, formulas, (Maps(case, at) for at in layer_slices(case.trace.attn_scores)))


def _gradients(case: Case) -> list[Result]:
    return [other for other in case.others if other.learned.delta is not None and other.role == "hypothesis"]


likeness = partial(metric, together=_by_layers, applies=lambda case: case.is_pair and case.has_attention, within=COSINE)


@likeness("sim_am", "cos(c.attn_scores, g.attn_scores)", "likeness of the attention maps", title="Attention maps")
def sim_am(c: Tensor, g: Tensor) -> Tensor:
    return cosine(c, g)


@likeness(
    "sim_am_delta",
    "cos(c.attn_scores - z.attn_scores, g.attn_scores - z.attn_scores)",
    "likeness of the changes of the attention maps",
    title="Changes of attention maps",
)
def sim_am_delta(z: Tensor, c: Tensor, g: Tensor, undefined: int) -> Tensor:
    found = cosine(c - z, g - z)
    found[:, :undefined] = torch.nan
    return found


@likeness("sim_am_centered", "sim_am, each row less its mean", "likeness of the maps up to what softmax ignores")
def sim_am_centered(c: Tensor, g: Tensor, own: Tensor) -> Tensor:
    """A constant added to a row changes nothing for softmax; here it changes nothing either."""
    own = own.to(c.device)
    count = own.sum(-1, keepdim=True)

    def centered(scores: Tensor) -> Tensor:
        return (scores - scores.sum(-1, keepdim=True) / count).masked_fill(~own, 0)

    return cosine(centered(c), centered(g))


@likeness("sim_am_softmax", "cos(softmax(c.attn_scores), softmax(g.attn_scores))", "likeness of the attention weights")
def sim_am_softmax(c: Tensor, g: Tensor, own: Tensor) -> Tensor:
    own = own.to(c.device)

    def weights(scores: Tensor) -> Tensor:
        return scores.masked_fill(~own, -torch.inf).softmax(-1)

    return cosine(weights(c), weights(g))


@likeness(
    "alpha",
    "sim_am_delta between two gradient learners",
    "are two gradient learners the same thing; `reference` names the other",
    applies=lambda case: case.is_gradient and bool(_gradients(case)),
)
def alpha(z: Tensor, g: Tensor, others: dict[LearnerSpec, Tensor], undefined: int) -> dict[LearnerSpec, Tensor]:
    return {learning: sim_am_delta(z, theirs, g, undefined) for learning, theirs in others.items()}


@metric(
    "sim_am_zero_shot",
    "cos(c.attn_scores, z.attn_scores)",
    "likeness of the maps before any fine-tuning",
    applies=lambda case: case.is_reference and case.has_attention,
    within=COSINE,
)
def sim_am_zero_shot(case: Case) -> Values:
    chunks = []
    for at in layer_slices(case.zero_shot.attn_scores):
        own = visible(case.zero_shot, at)
        chunks.append(cosine(seen_scores(case.trace, own, at), seen_scores(case.zero_shot, own, at)))
    return PerQuery("sim_am_zero_shot", torch.cat(chunks, 1), ZERO_SHOT)
