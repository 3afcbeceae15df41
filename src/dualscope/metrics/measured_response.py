"""One learner's response: its rows and the products that findings re-pair; the only way in which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.core.response_products import OWN, ComparedPart, Copying, Products, geometry_matrix, table_of, weighted
from dualscope.core.rows import MetricRow, metric_row
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.core.words import JUDGED, LEVELS, PLACE_SETS, Level
from dualscope.learners.response_bench import answer_vectors, centred, function_part
from dualscope.metrics.explained import order_sensitivity
from dualscope.metrics.responses_of_draws import (
    SNR_FLOOR,
    Responses,
    gram,
    influence,
    learned_share,
    products,
    signal_to_noise,
)

if TYPE_CHECKING:
    from dualscope.learners.response_bench import OnDraws, ResponseBench
    from dualscope.models.reading.trace import Trace


Plants = Sequence[tuple[str, LearnerSpec]]


@dataclass(frozen=True)
class MeasuredResponse:
    """Rows, the products of responses, a table of the queries where the intervention gives one, and what failed."""

    rows: list[MetricRow]
    responses: pa.Table | None
    queries: pa.Table | None = None
    notes: tuple[str, ...] = ()


class ResponseMeter:
    """Measures learners on one response bench. What they share (the reference, copying, plants) is computed once."""

    def __init__(self, bench: ResponseBench) -> None:
        self.bench = bench
        self.start = bench.bench.zero_shot
        self.epsilon = float(torch.finfo(self.start.attn_out.dtype).eps)
        self._known: dict[LearnerSpec, Responses] = {}
        self._plants: dict[LearnerSpec, Responses] = {}
        self._failed: dict[LearnerSpec, tuple[str, ...]] = {}

    def measure(self, learning: LearnerSpec, plants: Plants = ()) -> MeasuredResponse:
        """A learner's rows. ``plants``: other references than ICL, by the names that rows have for them."""
        name = self.bench.intervention.name
        if name == JUDGED:
            return self._relabelled(learning, plants)
        if name == "reorder":
            found = self.bench.on_draws(learning)
            return MeasuredResponse([_order_row(found)], None, notes=_notes(learning, found))
        if name == "flip-one":
            return self._flipped(learning)
        rows = list(self._responses_rows(learning))
        return MeasuredResponse(rows, None, notes=self._failed[learning])

    # What learners share

    def of(self, learning: LearnerSpec) -> Responses:
        if learning not in self._known:
            self._keep(learning, self.bench.on_draws(learning))
        return self._known[learning]

    def planted(self, learning: LearnerSpec) -> Responses:
        if learning not in self._plants:
            found = self.bench.on_draws(learning, plant=True)
            assert found.planted is not None
            self._plants[learning] = _responses(found, found.planted)
            self._keep(learning, found)  # trained once: its own response is known too
        return self._plants[learning]

    def _keep(self, learning: LearnerSpec, found: OnDraws) -> None:
        self._known[learning] = _responses(found, found.traces, scores=learning.control is None)
        self._failed[learning] = _notes(learning, found)

    @cached_property
    def reference(self) -> Responses:
        return self.of(IN_CONTEXT)

    @cached_property
    def copying(self) -> list[Responses] | str:
        """In-context learning with each set of other inputs; or why there is none."""
        numbers = range(1, PLACE_SETS + 1)
        try:
            return [self.of(LearnerSpec.of(IN_CONTEXT.name, _numbered(number), "places")) for number in numbers]
        except InputError as error:
            return str(error)

    # Relabelled

    def _relabelled(self, learning: LearnerSpec, plants: Plants) -> MeasuredResponse:
        # A plant is made while its learner is at work: first, so that nothing is trained twice.
        if learning in (plant for _, plant in plants):
            self.planted(learning)
        own = self.of(learning)
        notes = self._failed[learning]
        rows = list(self._shares(own))
        parts = list(_grams(own))
        if learning != IN_CONTEXT:
            found = list(self._compared(IN_CONTEXT.label, self.reference, own, learning.control != "places"))
            parts += found
            rows += self._compared_rows(own, IN_CONTEXT.label, self.reference, found)
        for name, plant in plants:
            reference = self.planted(plant)
            found = list(self._compared(name, reference, own, False))
            parts += found
            rows += _response_rows(name, found)
            if plant == learning:
                rows += self._shares(reference, name)
        if isinstance(self.copying, str) and learning == IN_CONTEXT:
            notes = (*notes, f"copying was not measured: {self.copying}")
        return MeasuredResponse(rows, table_of(parts, own.levels), notes=notes)

    def _shares(self, own: Responses, name: str | None = None) -> Iterator[MetricRow]:
        start = answer_vectors(self.start.label_logprobs)
        share = learned_share(own.answers, start, own.levels)
        yield _row("learned_share", share, name, len(own.draws), level=LEVELS[0])
        if own.outputs is None:
            return
        shares = self._layer_shares(own)
        yield _row("learned_share_aou", float(np.nanmean(shares)), name, len(own.draws), level=LEVELS[0])
        for layer, value in enumerate(shares):
            yield _row("learned_share_aou", value, name, len(own.draws), layer, LEVELS[0])
        for layer, snr in enumerate(self._noise(own)):
            yield _row("response_snr", snr, name, len(own.draws), layer)

    def _layer_shares(self, own: Responses) -> list[float]:
        assert own.outputs is not None
        z = self.start.attn_out
        return [learned_share(own.outputs[:, :, layer], z[:, layer], own.levels) for layer in range(z.shape[1])]

    def _noise(self, own: Responses) -> list[float]:
        assert own.outputs is not None
        return [
            signal_to_noise(
                own.outputs[:, :, layer], function_part(centred(own.outputs[:, :, layer], own.levels)), self.epsilon
            )
            for layer in range(own.outputs.shape[2])
        ]

    def _compared(self, name: str, reference: Responses, own: Responses, copying: bool) -> Iterator[ComparedPart]:
        """The answers, and the outputs of every layer in which both responses are above rounding."""
        draws = [draw for draw in own.draws if draw in reference.draws]
        reference, own = reference.only(draws), own.only(draws)
        sets: list[Responses] = []
        if copying and not isinstance(self.copying, str):
            sets = [one.only(draws) for one in self.copying if set(draws) <= set(one.draws)]
        levels = own.levels

        def part(values: Tensor) -> Tensor:
            return function_part(centred(values, levels))

        def answers(one: Responses) -> Tensor:
            found = part(one.answers)
            # The same function of every query on every draw: what is left of it is rounding, which has a direction.
            return found if signal_to_noise(one.answers, found, self.epsilon) >= SNR_FLOOR else torch.zeros_like(found)

        r, s = answers(reference), answers(own)
        beside = _copying(r, s, [answers(one) for one in sets])
        yield ComparedPart(name, "answers", None, products(r, s), beside)
        if own.outputs is None or reference.outputs is None:
            return
        weights, noise = (self._layer_shares(reference), zip(self._noise(reference), self._noise(own), strict=True))
        for layer, snr in enumerate(noise):
            if min(snr) < SNR_FLOOR:
                continue
            r, s = part(reference.outputs[:, :, layer]), part(own.outputs[:, :, layer])
            beside = _copying(r, s, [part(_outputs(one)[:, :, layer]) for one in sets])
            yield ComparedPart(name, "outputs", layer, products(r, s), beside, max(0.0, weights[layer]))

    def _compared_rows(
        self, own: Responses, name: str, reference: Responses, parts: Sequence[ComparedPart]
    ) -> Iterator[MetricRow]:
        yield from _response_rows(name, parts)
        draws = [draw for draw in own.draws if draw in reference.draws]
        reference, own = reference.only(draws), own.only(draws)
        levels, n = own.levels, len(draws)
        prior = [centred(one.answers, levels).mean(1, keepdim=True) for one in (reference, own)]
        yield _row("response_bias", products(*prior).correlation, name, n)
        shares = self._layer_shares(reference) if reference.outputs is not None else []
        maps = (reference.scores, own.scores)
        if maps[0] is not None and maps[1] is not None:
            found = [
                products(*(centred(one[:, :, layer], levels) for one in maps if one is not None)).correlation
                for layer in range(len(shares))
            ]
            yield from _layer_rows("response_am", found, shares, name, n)
        if own.outputs is not None and reference.outputs is not None:
            left, right = (
                np.stack([gram(centred(one[:, :, layer], levels)) for layer in range(len(shares))])
                for one in (reference.outputs, own.outputs)
            )
            best = np.fmax.reduce(geometry_matrix(left, right, levels), axis=1)  # NaN only where all are
            yield from _layer_rows("response_geometry", best, shares, name, n)

    # The other interventions

    def _responses_rows(self, learning: LearnerSpec) -> Iterator[MetricRow]:
        """A plugin's intervention: shown beside ICL's, never judged."""
        if learning == IN_CONTEXT:
            return
        parts = list(self._compared(IN_CONTEXT.label, self.reference, self.of(learning), False))
        yield from _response_rows(IN_CONTEXT.label, parts)

    def _flipped(self, learning: LearnerSpec) -> MeasuredResponse:
        found = self.in_context_flipped if learning == IN_CONTEXT else self.bench.on_draws(learning)
        own = influence(found.traces, self.bench.on_lesson(learning))
        rows: list[MetricRow] = []
        if learning != IN_CONTEXT:
            beside = self.in_context_flipped
            both = [d.index for d in found.draws if d.index in {other.index for other in beside.draws}]
            pair = [
                _columns(influence(one.traces, self.bench.on_lesson(who)), one, both)
                for who, one in ((IN_CONTEXT, beside), (learning, found))
            ]
            left, right = (values - values.mean(0, keepdim=True) for values in pair)
            value = products(left.T[:, :, None], right.T[:, :, None]).correlation
            rows.append(_row("response_influence", value, IN_CONTEXT.label, len(both)))
        rows.append(_row("influence", float(own.abs().mean()), None, len(found.draws)))
        table = pa.table(
            {
                "query": list(self.start.query_ids),
                "influence": [row.tolist() for row in own],
                "demonstrations": [[draw.index for draw in found.draws]] * len(own),
            }
        )
        return MeasuredResponse(rows, None, table, _notes(learning, found))

    @cached_property
    def in_context_flipped(self) -> OnDraws:
        return self.bench.on_draws(IN_CONTEXT)


def _responses(found: OnDraws, traces: Sequence[Trace], scores: bool = False) -> Responses:
    return Responses.of(
        traces,
        [draw.index for draw in found.draws],
        [draw.level for draw in found.draws],
        found.predictions_only,
        scores,
    )


def _outputs(one: Responses) -> Tensor:
    assert one.outputs is not None
    return one.outputs


def _copying(r: Tensor, s: Tensor, sets: Sequence[Tensor]) -> Copying | None:
    if len(sets) < 2:
        return None
    pairs = list(combinations(sets, 2))
    sizes = [float((one * other).sum()) for one, other in pairs]
    own = [float(one.square().sum()) for one in sets]
    numbers = [
        size / (own[i] * own[j]) ** 0.5 if own[i] * own[j] > 0 else 0.0
        for size, (i, j) in zip(sizes, combinations(range(len(sets)), 2), strict=True)
    ]
    mean = torch.stack(list(sets)).mean(0)
    return Copying(products(mean, s), float((r * mean).sum()), float(np.mean(sizes)), float(np.mean(numbers)))


def _grams(own: Responses) -> Iterator[ComparedPart]:
    """The products of a learner's own draws, by layer: what the geometry is made of."""
    if own.outputs is None:
        return
    for layer in range(own.outputs.shape[2]):
        found = gram(centred(own.outputs[:, :, layer], own.levels))
        size = float(np.trace(found))
        yield ComparedPart(OWN, "outputs", layer, Products(found, np.zeros((0, 0)), size, size))


def _response_rows(name: str, parts: Sequence[ComparedPart]) -> Iterator[MetricRow]:
    answers = next(part for part in parts if part.part == "answers")
    n = len(answers.products.draws)
    yield _row("response_answers", answers.plain, name, n)
    if answers.copying is not None:
        yield _row("response_answers_given", answers.given_copying, name, n)
        yield _row("copying", answers.copying.agreement, name, n)
    layers = [part for part in parts if part.part == "outputs"]
    if not layers:
        return
    weights = [part.weight for part in layers]
    numbers = [part.layer for part in layers]
    yield from _layer_rows("response_aou", [part.plain for part in layers], weights, name, n, numbers)
    if layers[0].copying is not None:
        given = [part.given_copying for part in layers]
        yield from _layer_rows("response_aou_given", given, weights, name, n, numbers)


def _layer_rows(
    metric: str,
    values: Sequence[float] | np.ndarray,
    weights: Sequence[float],
    name: str,
    n: int,
    layers: Sequence[int | None] | None = None,
) -> Iterator[MetricRow]:
    yield _row(metric, float(weighted(np.asarray(values, float), weights)), name, n)
    for layer, value in zip(layers or range(len(values)), values, strict=True):
        yield _row(metric, float(value), name, n, layer)


def _order_row(found: OnDraws) -> MetricRow:
    return _row("order_sensitivity", float(order_sensitivity(list(found.traces)).mean()), None, len(found.traces))


def _columns(values: Tensor, found: OnDraws, draws: Sequence[int]) -> Tensor:
    at = {draw.index: column for column, draw in enumerate(found.draws)}
    return values[:, [at[draw] for draw in draws]]


def _numbered(number: int) -> dict[str, int]:
    """The option that names a control's draw; the first is the default."""
    return {"draw": number} if number > 1 else {}


def _notes(learning: LearnerSpec, found: OnDraws) -> tuple[str, ...]:
    failed = (f"{draw}: {why}" for draw, why in found.failed.items())
    return tuple(f"{learning.label}, {note}" for note in (*failed, *found.notes))


def _row(
    metric: str, value: float, reference: str | None, n: int, layer: int | None = None, level: Level | None = None
) -> MetricRow:
    return {**metric_row(metric, float(value), reference, n, layer=layer), "level": level}
