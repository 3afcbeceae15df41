"""One learner's rows: the only way in which they are made, for a run, a comparison, the doctor and the explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dualscope.core.errors import NotFiniteError
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT, LearnerSpec
from dualscope.metrics.case import Case
from dualscope.metrics.catalog import METRICS, expand
from dualscope.metrics.explained import read_spare
from dualscope.metrics.icl_update import NAMES as UPDATES
from dualscope.metrics.icl_update import read_updates
from dualscope.metrics.measured_rows import measure
from dualscope.metrics.replay import REPLAYS, Replays, read_replays
from dualscope.metrics.single_heads import measure_heads
from dualscope.metrics.splice import NAMES as SPLICES
from dualscope.metrics.splice import Splices, can_be_spliced, read_splices

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from dualscope.core.rows import MetricRow
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Result


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
        replays=_replays(bench, own, reference, names),
        splices=_splices(bench, own, names),
        updates=_updates(bench, own, reference, names),
        heads=measure_heads(bench, names) if own.role == "reference" else {},
        spare=read_spare(bench, names) if own.role == "reference" else None,
    )
    found = measure(case, metrics=names, per_head=per_head, per_query=per_query, subset=subset, seed=seed)
    return Measured(own, found.rows, found.queries)


def _replays(bench: Bench, own: Result, reference: LearnerSpec | None, names: Sequence[str]) -> Replays:
    if reference is None or own.learning == reference or own.learned.predictions_only:
        return {}
    return read_replays(bench, own.trace, bench.result(reference).trace, names) if set(REPLAYS) & set(names) else {}


def _splices(bench: Bench, own: Result, names: Sequence[str]) -> Splices:
    asked = set(SPLICES) & set(names)
    return read_splices(bench, own, asked) if asked and can_be_spliced(own) else {}


def _updates(bench: Bench, own: Result, reference: LearnerSpec | None, names: Sequence[str]) -> Mapping[str, Tensor]:
    asked = set(UPDATES) & set(names)
    return read_updates(bench, own.learning, asked) if asked and reference is not None and own.learned.delta else {}


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
