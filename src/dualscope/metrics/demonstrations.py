"""Do both learners attend to the same demonstration tokens? Kendall's tau, and the nulls it should be held to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualscope.core.statistics import COSINE, SHARE
from dualscope.core.words import Control
from dualscope.metrics.case import Case, PerQuery, Values
from dualscope.metrics.metric import family

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


def _taus(case: Case, names: frozenset[str]) -> Iterator[Values]:
    assert case.lesson is not None
    records, extras = case.learned.log.records, case.trace.extras
    places = shared_tokens(case.lesson, records["queries"].shape[1])
    if places is None:
        return
    some = slice(0, KENDALL_QUERIES)

    def in_context(extra: str) -> Tensor:  # [queries, layers, tokens]
        return case.reference.extras[extra][some].to(case.reference.device)[..., places.context].double()

    def update(record: str, extra: str) -> Tensor:
        now = extras[extra][some].to(case.trace.device)
        return attention_of_update(records[record][:, places.training], now).to(icl)

    icl = in_context("context_scores")
    hidden = icl.isnan()  # behind a window
    gd = update("queries", "query_vectors")
    for name in names:
        if name in ("kendall_recall", "kendall_recall_chance"):
            found = recall(icl, gd, hidden)[name == "kendall_recall_chance"].double()
        elif name == "kendall_demonstrations":
            shown, learned = (
                by_demonstration(scores.masked_fill(hidden, torch.nan), places.owner) for scores in (icl, gd)
            )
            found = tau_b(shown, learned, shown.isnan())
        elif name == "kendall_raw":
            found = tau_b(in_context("context_products"), gd)
        elif name == "kendall_shift":
            found = torch.stack([tau_b(icl, moved, hidden) for moved in shifted(gd, case.seed)]).mean(0)
        elif name == "kendall_dual":
            found = tau_b(icl, update("inputs", "layer_inputs"), hidden)
        else:
            found = tau_b(icl, gd if name == "kendall" else _null_scores(name, icl, case.seed), hidden)
        values = torch.full((len(case.trace), found.shape[1]), torch.nan, dtype=found.dtype)
        values[some] = found.cpu()  # the other queries are not measured, and n says so
        yield PerQuery(name, values, case.against.learning)


def _null_scores(name: str, icl: Tensor, seed: int) -> Tensor:
    if name == "kendall_recency":
        return torch.arange(icl.shape[-1]).to(icl).expand_as(icl)
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, 5]).generate_state(1)[0]))
    return torch.rand(icl.shape, generator=generator).to(icl)


def _applies(case: Case) -> bool:
    return (
        case.is_pair
        and case.lesson is not None
        and case.learning.control not in ELSEWHERE
        and not (case.learning.control == "random-labels" and len(set(map(len, case.lesson.answers))) > 1)
        and {"queries", "inputs"} <= case.learned.log.records.keys()
        and "context_scores" in case.reference.extras
    )


_add = family(_taus, _applies, COSINE)
for _name, _formula, _about in (
    (
        "kendall",
        "tau_b(sum_h scores of ICL, sum_h q'_t.q of the fine-tuned model) over demonstration tokens t",
        "do both attend to the same demonstration tokens",
    ),
    ("kendall_dual", "kendall with layer inputs x'_t.x", "the same with the keys of the exact dual form"),
    ("kendall_random", "tau_b(ICL's scores, U[0, 1))", "baseline: random scores"),
    ("kendall_shift", "kendall with GD's scores moved around in a circle", "null: smooth scores in the wrong place"),
    ("kendall_recency", "tau_b(ICL's scores, t)", "null: later tokens score higher, nothing else"),
    (
        "kendall_demonstrations",
        "kendall of the mean score of each demonstration's tokens",
        "do both attend to the same demonstrations",
    ),
):
    _add(_name, _formula, f"{_about} (first {KENDALL_QUERIES} queries)", default=False, wants=["kendall"])
for _name, _formula, _about in (
    (
        "kendall_recall",
        f"|{TOP} highest tokens of ICL & {TOP} highest of GD| / {TOP}",
        "do both attend most to the same demonstration tokens",
    ),
    ("kendall_recall_chance", f"{TOP} / tokens", "baseline: what random scores recall"),
):
    _add(_name, _formula, f"{_about} (first {KENDALL_QUERIES} queries)", default=False, wants=["kendall"], within=SHARE)
_add(
    "kendall_raw",
    "kendall with sum_h k_t.q of ICL: no scale, softcap, position bias or window",
    f"kendall on the products alone (first {KENDALL_QUERIES} queries)",
    default=False,
    wants=["kendall", "context_products"],
    applies=lambda case: _applies(case) and "context_products" in case.reference.extras,
)
