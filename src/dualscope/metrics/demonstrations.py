"""Do both learners attend to the same demonstration tokens? Kendall's tau, and the nulls it should be held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualscope.core.statistics import COSINE, SHARE, Bounds
from dualscope.core.words import Control
from dualscope.metrics.case import Case, PerQuery
from dualscope.metrics.metric import Applies, F, Function, called, metric

if TYPE_CHECKING:
    from dualscope.tasks.lesson import DemonstrationTokens, Lesson


# Kendall's tau-b of many pairs of rankings at once, in O(n log^2 n) each and without a matrix of all pairs.


BLOCK = 16  # shorter runs are compared all with all


def tau_b(left: Tensor, right: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Along the last axis: [..., items] twice -> [...]. NaN where a side is constant or not finite.

    Items that are ``hidden`` (boolean, of the same shape) do not count.

    >>> tau_b(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0])).item()
    0.6666666666666666
    """
    shape, items = left.shape[:-1], left.shape[-1]
    if items < 2 or not shape.numel():
        return torch.full(shape, torch.nan, dtype=torch.float64, device=left.device)
    hidden = torch.zeros_like(left, dtype=torch.bool) if hidden is None else hidden
    finite = ((torch.isfinite(left) & torch.isfinite(right)) | hidden).all(-1)
    # Put below all others on both sides, hidden items are tied among themselves and in order with all that count.
    left, right = (values.masked_fill(hidden, -torch.inf) for values in (left, right))
    out = hidden.sum(-1).double().reshape(-1)
    ordered = out * (items - out)
    x, y = left.reshape(-1, items), right.reshape(-1, items)
    by_y = y.argsort(dim=-1, stable=True)
    n_y = _tied(y.gather(-1, by_y))
    order = by_y.gather(-1, x.gather(-1, by_y).argsort(dim=-1, stable=True))  # by x, ties by y
    x, y = x.gather(-1, order), y.gather(-1, order)
    n_x, n_both = _tied(x), _tied(x, y)
    pairs = items * (items - 1) / 2
    agreement = pairs - n_x - n_y + n_both - 2 * inversions(y) - ordered
    counted = pairs - ordered  # ties among hidden items are in n_x and n_y too, and cancel
    tau = agreement / ((counted - n_x) * (counted - n_y)).sqrt()
    return torch.where(finite, tau.reshape(shape), torch.nan)


def _tied(*ordered: Tensor) -> Tensor:
    """Pairs that are equal in all of these, which are sorted: [rows]."""
    rows, items = ordered[0].shape
    place = torch.arange(items, device=ordered[0].device).expand(rows, items)
    new = torch.ones_like(ordered[0], dtype=torch.bool)
    new[:, 1:] = torch.stack([values[:, 1:] != values[:, :-1] for values in ordered]).any(0)
    start = torch.where(new, place, 0).cummax(-1).values
    return (place - start).sum(-1).double()  # each item is tied with those before it in its run


def inversions(values: Tensor) -> Tensor:
    """Pairs that stand in descending order, [rows, items] -> [rows], by a merge sort of all rows side by side.

    >>> inversions(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 2.0]]))
    tensor([2., 0.], dtype=torch.float64)
    """
    rows, items = values.shape
    size = BLOCK
    while size < items:
        size *= 2
    padded = values.new_full((rows, size), torch.inf)  # at the end and largest: adds no inversion
    padded[:, :items] = values
    runs = padded.reshape(rows, -1, BLOCK)
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=values.device).triu(1)
    found = ((runs[..., :, None] > runs[..., None, :]) & later).flatten(1).sum(-1)
    length = BLOCK
    while length < size:
        runs = runs.sort(-1).values.reshape(rows, -1, 2, length)
        first, second = runs[:, :, 0].contiguous(), runs[:, :, 1].contiguous()
        not_larger = torch.searchsorted(first, second, right=True)
        found = found + (length - not_larger).flatten(1).sum(-1)
        length *= 2
        runs = runs.reshape(rows, -1, length)
    return found.double()


KENDALL_QUERIES = 64  # the first ones: tau over a thousand tokens varies little between queries
SHIFTS = 4
TOP = 10  # tokens
ELSEWHERE: frozenset[Control | None] = frozenset({"other-task", "redraw", "reorder"})
"""Controls under which a learner is taught another list of demonstrations."""


@dataclass(frozen=True)
class Places:
    """The demonstrations' tokens that both learners have: prompt and label; no BOS, no separator."""

    context: list[int]  # where each stands in the context
    training: list[int]  # where among what was recorded of the training
    owner: list[int]  # which demonstration it is of


def shared_tokens(lesson: Lesson, recorded: int) -> Places | None:
    """Learners record the whole of every demonstration, all but its first token (steps of one token without BOS), or
    its label alone (a loss on labels). None where `recorded` fits none of these.
    """

    def first_of(layout: str, taught: DemonstrationTokens) -> int:
        return {"whole": 0, "no first": 1, "label": len(taught.prompt)}[layout]

    def size(taught: DemonstrationTokens) -> int:
        return len(taught.prompt) + len(taught.label)

    for layout in ("whole", "no first", "label"):
        if sum(size(taught) - first_of(layout, taught) for taught in lesson.training) == recorded:
            break
    else:
        return None
    in_context = {shown.id: size(shown) for shown in lesson.demonstrations}
    places, row = Places([], [], []), 0
    for number, taught in enumerate(lesson.training):
        first = first_of(layout, taught)
        if taught.id in in_context:
            # with corrupted labels the two label words may differ in length
            for place in range(first, min(size(taught), in_context[taught.id])):
                places.context.append(taught.start + place)
                places.training.append(row + place - first)
                places.owner.append(number)
        row += size(taught) - first
    return places


def attention_of_update(recorded: Tensor, now: Tensor) -> Tensor:
    """Recorded vectors of the demonstration tokens . the vector at the read position.

    [layers, tokens, dim] and [queries, layers, dim] -> [queries, layers, tokens].
    """
    return torch.einsum("ltd,qld->qlt", recorded.double(), now.double())


def shifted(scores: Tensor, seed: int) -> list[Tensor]:
    """The scores moved around in a circle: as smooth along the text as they were, but no longer in its place."""
    items = scores.shape[-1]
    if items < 2:
        return [scores]
    offsets = np.random.default_rng([seed, 5]).integers(1, items, SHIFTS)
    return [scores.roll(int(offset), -1) for offset in offsets]


def by_demonstration(scores: Tensor, owner: list[int]) -> Tensor:
    """The mean score of each demonstration's tokens, NaN left out: [..., tokens] -> [..., demonstrations].

    >>> by_demonstration(torch.tensor([1.0, 3.0, 5.0]), [0, 0, 7])
    tensor([2., 5.])
    """
    number = torch.tensor(owner, device=scores.device).unique(return_inverse=True)[1]
    shape = (*scores.shape[:-1], int(number.max()) + 1)
    there = ~scores.isnan()
    total = scores.new_zeros(shape).index_add_(-1, number, torch.where(there, scores, 0))
    return total / scores.new_zeros(shape).index_add_(-1, number, there.to(scores.dtype))


def recall(icl: Tensor, gd: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Of ICL's `TOP` highest tokens, the share among GD's; and what chance would give. [..., tokens] -> [...]"""
    seen = (~hidden).sum(-1)
    top = seen.clamp(max=TOP)

    def highest(scores: Tensor) -> Tensor:
        rank = scores.masked_fill(hidden, -torch.inf).argsort(dim=-1, descending=True, stable=True).argsort(-1)
        return rank < top[..., None]

    shared = (highest(icl) & highest(gd)).sum(-1)
    return shared / top, top / seen


@dataclass(frozen=True)
class Attended:
    """What both learners attend to among the demonstration tokens that they share, [queries, layers, tokens]; a
    formula asks for it by name. The queries are the first ones.
    """

    case: Case
    places: Places

    def _in_context(self, extra: str) -> Tensor:
        scores = self.case.reference.extras[extra][:KENDALL_QUERIES].to(self.case.reference.device)
        return scores[..., self.places.context].double()

    def _of_update(self, record: str, extra: str) -> Tensor:
        now = self.case.trace.extras[extra][:KENDALL_QUERIES].to(self.case.trace.device)
        recorded = self.case.learned.log.records[record][:, self.places.training]
        return attention_of_update(recorded, now).to(self.icl)

    @cached_property
    def icl(self) -> Tensor:
        return self._in_context("context_scores")

    @property
    def hidden(self) -> Tensor:
        """Behind a window."""
        return self.icl.isnan()

    @property
    def products(self) -> Tensor:
        return self._in_context("context_products")

    @cached_property
    def gd(self) -> Tensor:
        return self._of_update("queries", "query_vectors")

    @property
    def dual(self) -> Tensor:
        """With the keys of the exact dual form."""
        return self._of_update("inputs", "layer_inputs")

    @property
    def owner(self) -> list[int]:
        return self.places.owner

    @property
    def seed(self) -> int:
        return self.case.seed


def _of_first_queries(case: Case, formulas: Mapping[str, Function]) -> Iterator[PerQuery]:
    assert case.lesson is not None
    places = shared_tokens(case.lesson, case.learned.log.records["queries"].shape[1])
    if places is None:
        return
    attended = Attended(case, places)
    for name, formula in formulas.items():
        found = called(formula, attended)
        values = torch.full((len(case.trace), found.shape[1]), torch.nan, dtype=found.dtype)
        values[: len(found)] = found.cpu()  # the other queries are not measured, and n says so
        yield PerQuery(name, values, case.against.learning)


def _applies(case: Case) -> bool:
    return (
        case.is_pair
        and case.lesson is not None
        and case.learning.control not in ELSEWHERE
        and not (case.learning.control == "random-labels" and len(set(map(len, case.lesson.answers))) > 1)
        and {"queries", "inputs"} <= case.learned.log.records.keys()
        and "context_scores" in case.reference.extras
    )


def ranked(
    name: str,
    formula: str,
    about: str,
    within: Bounds = COSINE,
    wants: frozenset[str] = frozenset({"kendall"}),
    applies: Applies = _applies,
) -> Callable[[F], F]:
    """Registers a formula of what is attended to, over the first queries."""
    about = f"{about} (first {KENDALL_QUERIES} queries)"
    return metric(
        name, formula, about, together=_of_first_queries, applies=applies, within=within, default=False, wants=wants
    )


@ranked(
    "kendall",
    "tau_b(sum_h scores of ICL, sum_h q'_t.q of the fine-tuned model) over demonstration tokens t",
    "do both attend to the same demonstration tokens",
)
def kendall(icl: Tensor, gd: Tensor, hidden: Tensor) -> Tensor:
    return tau_b(icl, gd, hidden)


@ranked("kendall_dual", "kendall with layer inputs x'_t.x", "the same with the keys of the exact dual form")
def kendall_dual(icl: Tensor, dual: Tensor, hidden: Tensor) -> Tensor:
    return tau_b(icl, dual, hidden)


@ranked("kendall_random", "tau_b(ICL's scores, U[0, 1))", "baseline: random scores")
def kendall_random(icl: Tensor, hidden: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, 5]).generate_state(1)[0]))
    return tau_b(icl, torch.rand(icl.shape, generator=generator).to(icl), hidden)


@ranked("kendall_shift", "kendall with GD's scores moved around in a circle", "null: smooth scores in the wrong place")
def kendall_shift(icl: Tensor, gd: Tensor, hidden: Tensor, seed: int) -> Tensor:
    return torch.stack([tau_b(icl, moved, hidden) for moved in shifted(gd, seed)]).mean(0)


@ranked("kendall_recency", "tau_b(ICL's scores, t)", "null: later tokens score higher, nothing else")
def kendall_recency(icl: Tensor, hidden: Tensor) -> Tensor:
    return tau_b(icl, torch.arange(icl.shape[-1]).to(icl).expand_as(icl), hidden)


@ranked(
    "kendall_demonstrations",
    "kendall of the mean score of each demonstration's tokens",
    "do both attend to the same demonstrations",
)
def kendall_demonstrations(icl: Tensor, gd: Tensor, hidden: Tensor, owner: list[int]) -> Tensor:
    shown, learned = (by_demonstration(scores.masked_fill(hidden, torch.nan), owner) for scores in (icl, gd))
    return tau_b(shown, learned, shown.isnan())


@ranked(
    "kendall_recall",
    f"|{TOP} highest tokens of ICL & {TOP} highest of GD| / {TOP}",
    "do both attend most to the same demonstration tokens",
    within=SHARE,
)
def kendall_recall(icl: Tensor, gd: Tensor, hidden: Tensor) -> Tensor:
    return recall(icl, gd, hidden)[0].double()


@ranked("kendall_recall_chance", f"{TOP} / tokens", "baseline: what random scores recall", within=SHARE)
def kendall_recall_chance(icl: Tensor, gd: Tensor, hidden: Tensor) -> Tensor:
    return recall(icl, gd, hidden)[1].double()


@ranked(
    "kendall_raw",
    "kendall with sum_h k_t.q of ICL: no scale, softcap, position bias or window",
    "kendall on the products alone",
    wants=frozenset({"kendall", "context_products"}),
    applies=lambda case: _applies(case) and "context_products" in case.reference.extras,
)
def kendall_raw(products: Tensor, gd: Tensor) -> Tensor:
    return tau_b(products, gd)
