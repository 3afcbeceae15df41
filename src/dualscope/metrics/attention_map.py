"""How alike two attention maps are, over the query's own tokens.

The functions take scores as [queries, layers, heads, tokens] with zeros where nothing is seen (see
`seen_scores`) and return [queries, layers, heads].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.spec import ZERO_SHOT, LearnerSpec
from dualscope.core.statistics import COSINE
from dualscope.metrics.case import Case, PerQuery, Values
from dualscope.metrics.cosine import cosine, layer_slices, wide
from dualscope.metrics.metric import family
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


def sim_am(_z: Tensor, c: Tensor, g: Tensor, _own: Tensor) -> Tensor:
    return cosine(c, g)


def sim_am_delta(z: Tensor, c: Tensor, g: Tensor, _own: Tensor) -> Tensor:
    return cosine(c - z, g - z)


def sim_am_centered(_z: Tensor, c: Tensor, g: Tensor, own: Tensor) -> Tensor:
    """A constant added to a row changes nothing for softmax; here it changes nothing either."""
    count = own.sum(-1, keepdim=True)

    def centered(scores: Tensor) -> Tensor:
        return (scores - scores.sum(-1, keepdim=True) / count).masked_fill(~own, 0)

    return cosine(centered(c), centered(g))


def sim_am_softmax(_z: Tensor, c: Tensor, g: Tensor, own: Tensor) -> Tensor:
    def weights(scores: Tensor) -> Tensor:
        return scores.masked_fill(~own, -torch.inf).softmax(-1)

    return cosine(weights(c), weights(g))


Formula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_FORMULAS: dict[str, Formula] = {
    function.__name__: function for function in (sim_am, sim_am_delta, sim_am_centered, sim_am_softmax)
}


def change_undefined(case: Case) -> slice:
    """Layers whose change of scores is undefined by construction.

    Where positions are relative, layer 0 has the same inputs and the same distances with a context and without.
    """
    return slice(0, 1 if case.relative_positions else 0)


def _family(case: Case, names: frozenset[str]) -> Iterator[Values]:
    pairs = [(name, case.against) for name in names if name in _FORMULAS]
    if "alpha" in names:
        pairs += [("alpha", other) for other in _gradients(case)]
    parts: dict[tuple[str, LearnerSpec], list[Tensor]] = {(name, other.learning): [] for name, other in pairs}
    for at in layer_slices(case.trace.attn_scores):
        own = visible(case.zero_shot, at)
        z, c, g = (seen_scores(trace, own, at) for trace in (case.zero_shot, case.reference, case.trace))
        own = own.to(z.device)
        for name, other in pairs:
            theirs = c if other is case.against else seen_scores(other.trace, own, at)
            formula = sim_am_delta if name == "alpha" else _FORMULAS[name]
            parts[name, other.learning].append(formula(z, theirs, g, own))
    for (name, reference), chunks in parts.items():
        values = torch.cat(chunks, 1)
        if name in ("sim_am_delta", "alpha"):
            values[:, change_undefined(case)] = torch.nan
        yield PerQuery(name, values, reference)


def _zero_shot(case: Case, _names: frozenset[str]) -> Iterator[Values]:
    chunks = []
    for at in layer_slices(case.zero_shot.attn_scores):
        own = visible(case.zero_shot, at)
        chunks.append(cosine(seen_scores(case.trace, own, at), seen_scores(case.zero_shot, own, at)))
    yield PerQuery("sim_am_zero_shot", torch.cat(chunks, 1), ZERO_SHOT)


def _gradients(case: Case) -> list[Result]:
    return [other for other in case.others if other.learned.delta is not None and other.role == "hypothesis"]


_add = family(_family, lambda case: case.is_pair and case.has_attention, COSINE)
_add("sim_am", "cos(c.attn_scores, g.attn_scores)", "likeness of the attention maps", title="Attention maps")
_add(
    "sim_am_delta",
    "cos(c.attn_scores - z.attn_scores, g.attn_scores - z.attn_scores)",
    "likeness of the changes of the attention maps",
    title="Changes of attention maps",
)
_add("sim_am_centered", "sim_am, each row less its mean", "likeness of the maps up to what softmax ignores")
_add("sim_am_softmax", "cos(softmax(c.attn_scores), softmax(g.attn_scores))", "likeness of the attention weights")
_add(
    "alpha",
    "sim_am_delta between two gradient learners",
    "are two gradient learners the same thing; `reference` names the other",
    applies=lambda case: case.is_gradient and bool(_gradients(case)),
)
family(_zero_shot, lambda case: case.is_reference and case.has_attention, COSINE)(
    "sim_am_zero_shot", "cos(c.attn_scores, z.attn_scores)", "likeness of the maps before any fine-tuning"
)
