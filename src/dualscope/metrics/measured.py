"""One learner's rows: the only way in which they are made, for a run, a comparison, the doctor and the explorer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dualscope.core.errors import InputError, NotFiniteError
from dualscope.core.rows import MetricRow, QueryColumn, metric_row
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT, LearnerSpec
from dualscope.core.statistics import RESAMPLES, finite_means, quantiles, ratio, resample_counts
from dualscope.metrics.case import Case, Logged, PerHead, PerQuery, Pooled, Values
from dualscope.metrics.catalog import METRICS, expand
from dualscope.metrics.metric import Function, Reading

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Result


# From a case to tidy rows: every metric that applies, aggregated, with intervals over the queries.


Column = tuple[pa.Field, Any]  # a field with its values, one a query


@dataclass(frozen=True)
class Measurement:
    """Rows with the columns metric, reference, layer, head, step, value, low, high, n; and one row a query."""

    rows: list[MetricRow]
    queries: pa.Table


def measure(
    case: Case,
    metrics: Iterable[str] | None = None,
    per_head: bool = False,
    per_query: bool = False,
    subset: Literal["all", "f2t"] = "all",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Measurement:
    """Every asked metric that applies to the case; one that does not apply yields no row.

    The table of queries holds each query's prediction, label log-probabilities and values (over layers: the mean).

    Args:
        case: The traces that are compared.
        metrics: Names; ``default`` and ``all`` stand for several. None: those that are on by default.
        per_head: Rows for every attention head too.
        per_query: Whether the table of queries has the values of every layer, as lists.
        subset: ``all``, or ``f2t``: metrics of attention over the queries alone that both the reference and the learner
            turn from wrong to right.
        seed: Of the resampling of queries.
        resamples: How many, for intervals over queries.

    >>> from dualscope.core.spec import IN_CONTEXT
    >>> from dualscope.learners.learner import Learned, Result
    >>> from dualscope.models.reading.trace import Trace
    >>> def trace(out, logits):
    ...     scores, labels = torch.ones(2, 1, 1, 3), torch.tensor([0, 1])
    ...     sizes = torch.tensor([3, 3])
    ...     return Trace(out, scores, sizes, out, torch.tensor(logits), labels, ("a", "b"))
    >>> z = trace(torch.zeros(2, 1, 2), [[0.0, -1.0], [0.0, -1.0]])
    >>> c = trace(torch.ones(2, 1, 2), [[0.0, -1.0], [-1.0, 0.0]])
    >>> g = trace(torch.eye(2)[:, None], [[0.0, -1.0], [-1.0, 0.0]])
    >>> gd = Result(LearnerSpec("gd"), "hypothesis", Learned(g))
    >>> found = measure(Case(z, gd, Result(IN_CONTEXT, "reference", Learned(c))), ["sim_aou"])
    >>> [(row["metric"], row["layer"], round(row["value"], 3), row["n"]) for row in found.rows]
    [('sim_aou', None, 0.707, 2), ('sim_aou', 0, 0.707, 2)]
    """
    names = expand(metrics)
    counts = _counts(len(case.trace), resamples, seed)
    rows: list[MetricRow] = []
    columns = _query_columns(case)
    for values in _computed(case, names, subset):
        if isinstance(values, PerQuery):
            summary = Summary.of(values)
            rows += summary.rows(counts, per_head)
            columns += summary.columns(case.against.learning, per_query)
        elif isinstance(values, Pooled):
            rows.append(_pooled_row(values, counts))
        elif isinstance(values, PerHead):
            samples = _array(values.values)
            rows += _head_rows(values, samples, _counts(len(samples), resamples, seed))
        else:
            rows += _logged_rows(values)
    fields, values_of = zip(*columns, strict=True)
    return Measurement(rows, pa.table(list(values_of), schema=pa.schema(list(fields))))


_counts = lru_cache(maxsize=2)(resample_counts)  # the cells of an episode resample alike


def _computed(case: Case, names: Sequence[str], subset: str) -> Iterator[Values]:
    if subset == "all" or not case.is_pair:
        yield from compute(case, names)
        return
    yield from compute(case, [name for name in names if not METRICS[name].by_subset])
    kept = case.turned_right()
    for values in compute(case.only(kept), [name for name in names if METRICS[name].by_subset]):
        yield _among_all(values, kept) if isinstance(values, PerQuery) else values


def _among_all(values: PerQuery, kept: Tensor) -> PerQuery:
    """Values of some queries in their places among all, NaN elsewhere."""

    def spread(part: Tensor) -> Tensor:
        part = part.double() if part.dtype == torch.bool else part
        whole = part.new_full((len(kept), *part.shape[1:]), torch.nan)
        whole[kept.to(part.device)] = part
        return whole

    weights = None if values.weights is None else spread(values.weights)
    return replace(values, values=spread(values.values), weights=weights)


def compute(case: Case, names: Iterable[str]) -> Iterator[Values]:
    """The values of the named metrics, in the registry's order; those that are computed together are so once."""
    asked = set(names)
    groups: dict[Any, dict[str, Function]] = {}
    for name in METRICS:
        metric = METRICS[name]
        if name in asked and metric.applies(case):
            groups.setdefault(metric.together or metric.function, {})[name] = metric.function
    place = {name: index for index, name in enumerate(METRICS)}
    for functions in groups.values():
        found = METRICS[next(iter(functions))].values(case, functions)
        for values in found:
            if isinstance(values, PerQuery):
                _check(values, len(case.trace))
        yield from sorted(found, key=lambda values: place[values.metric])


def _check(values: PerQuery, queries: int) -> None:
    """A plugin's function may return anything: what is no table of real numbers would be cut, or fail far from here."""
    found: Any = values.values
    if not isinstance(found, Tensor):
        said = f"a value of type {type(found).__name__}"
    elif found.is_complex():
        said = "complex numbers"
    elif found.ndim not in (1, 2, 3) or len(found) != queries or (queries and not found.numel()):
        said = f"a tensor of shape {tuple(found.shape)} for {queries} queries"
    else:
        return
    raise InputError(
        f"metric '{values.metric}' returns {said}; a tensor of real numbers is expected, [queries], [queries, layers] "
        "or [queries, layers, heads]"
    )


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _row(values: Values, value: float | np.ndarray, n: int, **more: Any) -> MetricRow:
    return metric_row(values.metric, float(value), values.reference, n, **more)


@dataclass(frozen=True)
class Summary:
    """Per-query numbers on their way to rows: numerators and denominators, zero where a value is left out."""

    source: PerQuery
    values: np.ndarray  # [queries(, layers)], heads averaged
    top: np.ndarray  # the same shape
    bottom: np.ndarray
    heads: np.ndarray | None  # [queries, layers, heads]

    @classmethod
    def of(cls, source: PerQuery) -> Summary:
        raw = _array(source.values)
        heads = raw if raw.ndim == 3 else None
        values = finite_means(raw, -1) if heads is not None else raw
        weights = np.ones_like(values) if source.weights is None else _array(source.weights)
        there = np.isfinite(values) & np.isfinite(weights)
        return cls(source, values, np.where(there, values, 0.0), np.where(there, weights, 0.0), heads)

    def rows(self, counts: np.ndarray, per_head: bool) -> list[MetricRow]:
        layered = self.values.ndim == 2
        top, bottom = (part if layered else part[:, None] for part in (self.top, self.bottom))
        found = ratio(top.sum(0), bottom.sum(0)) * self.source.scale  # [layers]
        draws = _draws(counts, top, bottom) * self.source.scale  # [resamples, layers]
        n = np.isfinite(self.values if layered else self.values[:, None])
        if not layered:
            low, high = quantiles(draws[:, 0])
            return [_row(self.source, found[0], low=float(low), high=float(high), n=int(n.sum(0)[0]))]
        rows = []
        if self.source.over_layers != "none":
            low, high = quantiles(self._over_layers(draws))
            some = int(n.any(1).sum())
            rows.append(_row(self.source, self._over_layers(found), low=float(low), high=float(high), n=some))
        low, high = quantiles(draws)
        for layer, value in enumerate(found):
            ends = {"low": float(low[layer]), "high": float(high[layer])}
            rows.append(_row(self.source, value, int(n[:, layer].sum()), **ends, layer=layer))
        if per_head and self.heads is not None:
            rows += _head_rows(self.source, self.heads, counts)
        return rows

    def columns(self, own: LearnerSpec, layers: bool) -> list[Column]:
        """This metric's columns in the table of queries; ratios and counts are no number of a query."""
        if self.source.weights is not None or self.source.scale != 1:
            return []

        def field(by_layer: bool, kind: pa.DataType) -> pa.Field:
            return QueryColumn.made(self.source.metric, self.source.reference, own, by_layer).field(kind)

        if self.values.ndim == 1:
            return [(field(False, pa.float64()), self.values.astype(float))]
        columns: list[Column] = []
        if self.source.over_layers == "mean":
            columns.append((field(False, pa.float64()), finite_means(self.values, -1)))
        if layers:
            columns.append((field(True, pa.list_(pa.float64())), list(self.values)))
        return columns

    def _over_layers(self, layers: np.ndarray) -> np.ndarray:
        if self.source.over_layers == "mean":
            return finite_means(layers, -1)
        found: np.ndarray = np.fmin.reduce(layers, axis=-1)  # NaN only where all are
        return found


def _draws(counts: np.ndarray, top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    # a resample is as large as the sample, so where all weigh 1 the denominator is known
    below = counts @ bottom if (bottom != 1).any() else float(len(bottom))
    return ratio(counts @ top, below)


def _head_rows(source: PerQuery | PerHead, heads: np.ndarray, counts: np.ndarray) -> list[MetricRow]:
    """A row a head, of [samples, layers, heads]."""
    flat = heads.reshape(len(heads), -1)
    there = np.isfinite(flat)
    top, bottom = np.where(there, flat, 0.0), there.astype(float)
    found, n = ratio(top.sum(0), bottom.sum(0)), there.sum(0)
    low, high = quantiles(_draws(counts, top, bottom))
    number = heads.shape[2]
    return [
        _row(source, value, int(n[i]), low=float(low[i]), high=float(high[i]), layer=i // number, head=i % number)
        for i, value in enumerate(found)
    ]


def _pooled_row(values: Pooled, counts: np.ndarray) -> MetricRow:
    parts = _array(values.parts)
    low, high = quantiles(values.combine(counts @ parts))
    return _row(values, values.combine(parts.sum(0)), low=float(low), high=float(high), n=len(parts))


def _logged_rows(values: Logged) -> list[MetricRow]:
    found = _array(values.values)
    rows: list[MetricRow] = [_row(values, finite_means(found.reshape(-1), 0), n=1)]
    if found.ndim == 2:
        rows += [_row(values, value, layer=layer, n=len(found)) for layer, value in enumerate(found.mean(0))]
        rows += [
            _row(values, value, layer=layer, step=step, n=1)
            for step, layers in enumerate(found)
            for layer, value in enumerate(layers)
        ]
    elif found.ndim == 1:
        rows += [_row(values, value, layer=layer, n=1) for layer, value in enumerate(found)]
    return rows


def _query_columns(case: Case) -> list[Column]:
    trace = case.trace
    return [
        (pa.field("query", pa.string()), list(trace.query_ids)),
        (pa.field("label", pa.int64()), trace.labels.cpu().numpy()),
        (pa.field("prediction", pa.int64()), trace.predictions.cpu().numpy()),
        (pa.field("label_logprobs", pa.list_(pa.float64())), list(_array(trace.label_logprobs))),
    ]


@dataclass(frozen=True)
class Measured:
    """What was found of one learner: its result, its rows, and a table of its queries."""

    result: Result
    rows: list[MetricRow]
    queries: pa.Table


def measure_cell(
    bench: Bench,
    learning: LearnerSpec,
    companions: Sequence[LearnerSpec] = (),
    *,
    reference: LearnerSpec | None = IN_CONTEXT,
    metrics: Sequence[str] | None = None,
    per_head: bool = False,
    per_query: bool = False,
    subset: Literal["all", "f2t"] = "all",
) -> Measured:
    """A learner's rows on a bench, compared with a reference (None: zero-shot, which is compared with nothing)."""
    own = bench.result(learning)
    _check_finite(own)
    seed = bench.lesson.episode.seed
    names = expand(metrics, per_head)
    twice = any(METRICS[name].reads_twice for name in names)
    case = Case(
        zero_shot=bench.zero_shot,
        own=own,
        against=bench.result(ZERO_SHOT if reference is None else reference),
        relative_positions=bench.model.relative_positions,
        output_bias=bench.model.output_bias,
        seed=seed,
        lesson=bench.lesson,
        others=tuple(bench.result(other) for other in companions),
        reread=bench.reread(own.learned) if twice else None,
    )
    case = replace(case, read=_read(bench, case, names))
    found = measure(case, metrics=names, per_head=per_head, per_query=per_query, subset=subset, seed=seed)
    return Measured(own, found.rows, found.queries)


def _read(bench: Bench, case: Case, names: Sequence[str]) -> dict[str, Any]:
    """What the named metrics ask of the model beside the traces."""
    readings: dict[Reading, list[str]] = {}
    for name in names:
        if (reading := METRICS[name].reading) is not None:
            readings.setdefault(reading, []).append(name)
    found: dict[str, Any] = {}
    for reading, asked in readings.items():
        found |= reading(bench, case, asked)
    return found


def _check_finite(result: Result) -> None:
    """A prediction read off NaN would be class 0, and look like an answer."""
    trace, learning = result.trace, result.learning
    bad = int((~trace.label_logprobs.isfinite()).any(-1).sum())
    if bad:
        rate = learning.lr
        advice = "" if rate is None else f"; a learning rate below {rate:g} may not diverge"
        raise NotFiniteError(
            f"{learning.label} left label probabilities that are not finite in {bad} of {len(trace)} queries{advice}"
        )
