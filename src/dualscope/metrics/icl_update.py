"""W_ICL against W_FT, literally (Dai et al. 2023): the update that a head makes of the context, and gradient descent's.

A head without softmax computes W q, W = sum over tokens of v k^T. The context's tokens add dW_ICL, the sum of v k^T
over them; a change of keys and values adds dW_FT, the sum over the query's own tokens of v' k'^T - v k^T. Keys are
those that softmax sees, with their positions: where these are relative, the query's tokens stand where they stand in
the context. Heads that share keys and values are one head here. BOS is in neither sum, and what stands behind a sliding
window is.

dW_ICL is the same for every query, and dW_FT is not: which query it is, the literal measure cannot see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.core.statistics import COSINE, SIZE, Bounds
from dualscope.core.words import Level
from dualscope.learners.response_bench import ResponseBench, centred
from dualscope.metrics.case import Case, Logged, PerQuery, Values
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import metric
from dualscope.metrics.responses_of_draws import SNR_FLOOR, signal_to_noise
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.memory import halving

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Change
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

DRAWS = 12  # of `relabel`, for the response
OF_QUERIES = ("sim_w", "sim_w_other_layer", "sim_w_mismatched", "rank_w_ft", "rank_w_icl")
RESPONSES = ("response_w", "response_w_other_layer", "response_w_repaired")
Heads = list[Tensor]
"""An update of every head, by layer: [heads, value width, key width]."""


@dataclass(frozen=True)
class FactoredUpdate:
    """sum over tokens of values keys^T, as its factors: [..., tokens, width] both. Never written out as a matrix.

    >>> one = FactoredUpdate(torch.eye(2), torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> one.square_norm(), one.rank(), one.product(torch.eye(2))
    (tensor(25.), tensor(1.8546), tensor(7.))
    """

    values: Tensor
    keys: Tensor

    @classmethod
    def of_change(cls, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], own: Tensor) -> FactoredUpdate:
        """v' k'^T - v k^T of some tokens, from (keys, values) before and after: v' (k' - k)^T + (v' - v) k^T, in which
        no large numbers cancel. ``own`` is 1 for the tokens that count: [..., tokens].
        """
        (k, v), (k_new, v_new) = before, after
        mask = own[..., None].to(v)
        return cls(torch.cat([v_new * mask, (v_new - v) * mask], -2), torch.cat([k_new - k, k], -2))

    def product(self, matrix: Tensor) -> Tensor:
        """<matrix, sum of values keys^T>: [..., value width, key width] -> [...]."""
        found: Tensor = ((self.values @ matrix) * self.keys).sum((-2, -1))
        return found

    def square_norm(self) -> Tensor:
        """By two Gram matrices of the tokens."""
        found: Tensor = (self._gram(self.values) * self._gram(self.keys)).sum((-2, -1))
        return found

    def rank(self) -> Tensor:
        """The effective rank (sum s^2)^2 / sum s^4, s the singular values."""
        both = self._gram(self.values) @ self._gram(self.keys)  # its eigenvalues are the s^2
        return self.square_norm().square() / (both * both.mT).sum((-2, -1))

    def matrix(self) -> Tensor:
        return self.values.mT @ self.keys

    @staticmethod
    def _gram(vectors: Tensor) -> Tensor:
        return vectors @ vectors.mT


def context_updates(bench: Bench) -> Heads:
    """dW_ICL of every layer: the sum of v k^T over the context's tokens, BOS left out."""
    first, prefix = len(bench.lesson.bos), bench.prefix
    return [
        wide(values[:, first:]).mT @ wide(keys[:, first:])
        for keys, values in zip(prefix.keys, prefix.values, strict=True)
    ]


def changed_updates(model: Model, lesson: Lesson, change: Change) -> Iterator[tuple[list[int], list[FactoredUpdate]]]:
    """dW_FT of some queries after the other, by layer: [queries, heads, ...]."""
    start = len(lesson.context) - len(lesson.bos) if model.relative_positions else 0

    def kept(batch: Batch) -> dict[int, tuple[Tensor, Tensor]]:
        session = Session(start=start, keep=True, unembed=0)
        with capturing(model, session):
            model.forward(batch.tokens, start)
        model.check(session)
        return {layer: (wide(keys), wide(values)) for layer, (keys, values) in session.kept.items()}

    def both(batch: Batch) -> list[FactoredUpdate]:
        before = kept(batch)
        with change.applied(model):
            after = kept(batch)
        own = own_tokens(batch)[:, None]  # for all heads
        pairs = ((before[layer], after[layer]) for layer in sorted(before))
        return [FactoredUpdate.of_change(old, new, own.to(old[0].device)) for old, new in pairs]

    with torch.no_grad(), model.running():
        for batch in batches_of(model, lesson, None, None):
            for part, updates in halving(model, batch, both):
                yield part.queries, updates


def own_tokens(batch: Batch) -> Tensor:
    """Which tokens of a batch are the query's own, up to the one that predicts the label: [queries, tokens]."""
    places = torch.arange(batch.tokens.shape[1])
    last = torch.as_tensor(batch.prompt_end).cpu().expand(len(batch.queries))
    return (places >= batch.lead) & (places <= last[:, None])


def read_updates(bench: Bench, case: Case, names: Collection[str]) -> Mapping[str, Tensor]:
    """The asked metrics of a learner that changed keys and values: [queries, layers, heads], responses [layers]."""
    found: dict[str, Tensor] = {}
    delta = case.learned.delta
    if not delta:
        return found
    if set(names) & set(OF_QUERIES):
        changed = changed_updates(bench.model, bench.lesson, delta)
        found |= of_queries(context_updates(bench), changed, len(bench.lesson.queries))
    if set(names) & set(RESPONSES):
        found |= responses(bench, case.learning)
    return {name: values for name, values in found.items() if name in names}


def of_queries(
    context: Heads, changed: Iterator[tuple[list[int], list[FactoredUpdate]]], queries: int
) -> dict[str, Tensor]:
    """Cosines and effective ranks of every query, layer and head."""
    units, others = _units(context), _other_layers(_units(context))
    shape = (queries, len(context), len(context[0]))
    found = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in OF_QUERIES}
    for rows, updates in changed:
        for layer, update in enumerate(updates):
            size = update.square_norm().sqrt()
            found["sim_w"][rows, layer] = (update.product(units[layer]) / size).cpu()
            found["sim_w_other_layer"][rows, layer] = (update.product(others[layer]) / size).cpu()
            found["rank_w_ft"][rows, layer] = update.rank().cpu()
    found["sim_w_mismatched"] = found["sim_w"].roll(1, 0)
    for layer, matrices in enumerate(context):
        found["rank_w_icl"][:, layer] = matrix_rank(matrices).cpu()
    return found


def responses(bench: Bench, own: LearnerSpec) -> dict[str, Tensor]:
    """How dW_FT, its mean over the queries, moves with the labels, beside dW_ICL: [layers]."""
    draws = ResponseBench(bench, "relabel", DRAWS).draws
    levels = [draw.level for draw in draws]
    theirs: list[Heads] = []
    ours: list[Heads] = []
    for draw in draws:
        altered = bench.with_lesson(draw.lesson)
        theirs.append(context_updates(altered))
        delta = altered.result(own).learned.delta
        assert delta is not None
        changed = changed_updates(altered.model, altered.lesson, delta)
        ours.append(mean_over_queries(changed, len(altered.lesson.queries)))
        altered.close()
    layers = range(len(theirs[0]))
    epsilon = float(torch.finfo(bench.zero_shot.attn_out.dtype).eps)
    icl = [moved(torch.stack([draw[layer] for draw in theirs]), levels, epsilon) for layer in layers]
    ft = [moved(torch.stack([draw[layer] for draw in ours]), levels, epsilon) for layer in layers]
    # Within a level every draw gets the next one's labels.
    order = list(range(len(draws)))
    for level in dict.fromkeys(levels):
        rows = [row for row, one in enumerate(levels) if one == level]
        for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
            order[row] = other
    alike = [[_correlation(a, b) for b in ft] for a in icl]
    crossed = [_mean([alike[layer][other] for other in layers if other != layer]) for layer in layers]
    return {
        "response_w": torch.tensor([alike[layer][layer] for layer in layers], dtype=torch.float64),
        "response_w_other_layer": torch.tensor(crossed, dtype=torch.float64),
        "response_w_repaired": torch.tensor([_correlation(a, b[order]) for a, b in zip(icl, ft, strict=True)]),
    }


def moved(updates: Tensor, levels: Sequence[Level | None], epsilon: float) -> Tensor:
    """How updates move over draws, [draws, ...]: NaN where that is no more than rounding."""
    found = centred(updates, levels)
    return found if signal_to_noise(updates, found, epsilon) > SNR_FLOOR else torch.full_like(found, torch.nan)


def mean_over_queries(changed: Iterator[tuple[list[int], list[FactoredUpdate]]], queries: int) -> Heads:
    """dW_FT, the mean over the queries, as one matrix a head."""
    total: Heads = []
    for _, updates in changed:
        parts = [update.matrix().sum(0) for update in updates]
        total = parts if not total else [a + b for a, b in zip(total, parts, strict=True)]
    return [part / queries for part in total]


def matrix_rank(update: Tensor) -> Tensor:
    """The effective rank of matrices: [heads, value width, key width] -> [heads].

    >>> matrix_rank(torch.diag_embed(torch.tensor([[1.0, 1.0, 0.0]])))
    tensor([2.])
    """
    gram = update @ update.mT if update.shape[-2] <= update.shape[-1] else update.mT @ update
    found: Tensor = update.square().sum((-2, -1)).square() / gram.square().sum((-2, -1))
    return found


def _units(context: Heads) -> Heads:
    return [update / torch.linalg.matrix_norm(update, keepdim=True) for update in context]


def _other_layers(units: Heads) -> Heads:
    """The mean of the other layers' updates, each of norm 1: a product with it is the mean of their cosines."""
    if len(units) < 2 or len({unit.shape for unit in units}) > 1:
        return [torch.full_like(unit, torch.nan) for unit in units]
    total = torch.stack([unit.to(units[0].device) for unit in units]).sum(0)
    return [(total.to(unit.device) - unit) / (len(units) - 1) for unit in units]


def _correlation(left: Tensor, right: Tensor) -> float:
    """<left, right> / |left| |right| over all numbers; NaN of another shape, or where one does not move."""
    if left.shape != right.shape:
        return float("nan")
    right = right.to(left.device)
    return float((left * right).sum() / (left.norm() * right.norm()))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _update(name: str, formula: str, about: str, within: Bounds = COSINE, title: str = "") -> None:
    """Registers what `read_updates` reads as a metric."""

    def values(case: Case) -> Values:
        kind = Logged if name in RESPONSES else PerQuery
        return kind(name, case.read[name], IN_CONTEXT)

    of_updates = partial(metric, reading=read_updates, by_subset=False, default=False)
    of_updates(name, formula, about, applies=lambda case: name in case.read, within=within, title=title)(values)


_update(
    "sim_w",
    "cos(dW_ICL, dW_FT) of a head: sum over the context of v k^T, sum over the query's tokens of v' k'^T - v k^T",
    "is the update that a head makes of the context the one that gradient descent makes? The duality, taken literally",
    title="W_ICL against W_FT",
)
_update(
    "sim_w_other_layer",
    "mean over k != l of cos(dW_ICL of layer k, dW_FT of layer l), head by head",
    "null of sim_w: another layer's context",
)
_update(
    "sim_w_mismatched",
    "sim_w of another query's dW_FT",
    "dW_ICL is the same for all queries, so the mean is that of sim_w: taken literally, it does not see the query",
)
_update(
    "rank_w_ft",
    "(sum s^2)^2 / sum s^4 of dW_FT, s its singular values",
    "the effective rank of gradient descent's update of a head",
    within=SIZE,
)
_update("rank_w_icl", "the same of dW_ICL", "the effective rank of the context's update of a head", within=SIZE)
_update(
    "response_w",
    "<D_icl, D_ft> / |D_icl| |D_ft|, D of dW_ICL and of the mean over queries of dW_FT, over draws of `relabel`",
    "when the labels change, do both updates move alike?",
)
_update(
    "response_w_other_layer",
    "mean over k != l of the same, dW_ICL of layer k with dW_FT of layer l",
    "null of response_w: another layer",
)
_update(
    "response_w_repaired",
    "the same with dW_FT of other labels",
    "null of response_w: each draw with the next one's labels",
)
