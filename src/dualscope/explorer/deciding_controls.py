"""What decides in a report, for one screen: the controls whose reach is the band of the likeness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError
from dualscope.core.spec import LearnerSpec
from dualscope.explorer.shown_result import likeness, predictions

if TYPE_CHECKING:
    from dualscope.explorer.bench_cache import BenchCache
    from dualscope.learners.bench import Bench

MISMATCHED = {"sim_aou": "sim_aou_mismatched"}  # another query's change, measured on the learner itself
TWICE = 1_000_000_000  # weights; a larger model is not held a second time, untrained


@dataclass(frozen=True)
class DecidingControl:
    """One control, called as the verdict calls it."""

    name: str
    learning: LearnerSpec
    untrained: bool = False
    metrics: Mapping[str, str] | None = None
    """Other metrics that are shown in place of the likeness's own."""
    always: bool = True
    """Whether it decides even where it answers more queries right than zero-shot does."""


def deciding_controls(focus: LearnerSpec) -> list[DecidingControl]:
    """Those of the verdict that a single screen can have.

    >>> [control.name for control in deciding_controls(LearnerSpec("gd", lr=0.1))]
    ['random-update', 'mismatched', 'null-context itself', 'position', 'dilution', 'random-labels', 'untrained']
    """
    from dualscope.findings.verdict import wrongly_taught
    from dualscope.learners import LEARNERS

    found = [
        DecidingControl("random-update", focus.under("random-update")),
        DecidingControl("mismatched", focus, metrics=MISMATCHED),
    ]
    for name in nulls():
        always = LEARNERS[name].decides
        found.append(DecidingControl(always or f"{name} itself", LearnerSpec(name), always=always is not None))
    found += [DecidingControl(n, focus.under(n), always=False) for n in wrongly_taught() if n != "other-task"]
    return [*found, DecidingControl("untrained", focus, untrained=True)]


def nulls() -> list[str]:
    """Learners that have nothing to learn from, as far as they need no other task."""
    from dualscope.learners import LEARNERS

    kinds = {name: LEARNERS[name] for name in LEARNERS}
    return [name for name, kind in kinds.items() if kind.role == "null" and not kind().needs_other(kind.options())]


def answer_of(control: DecidingControl, bench: Bench, beside: Bench) -> dict[str, Any]:
    """The control's likeness, and whether it teaches: then it is no null on this screen (``beside`` has zero-shot)."""
    from dualscope.metrics.measured import measure_cell

    names = dict(control.metrics or {name: name for name in ("sim_aou", "sim_am_delta")})
    measured = measure_cell(bench, control.learning, metrics=tuple(names.values()), per_head=False)
    trace, before = measured.result.trace, beside.zero_shot
    right, base = (int((one.predictions == one.labels).sum()) for one in (trace, before))
    found = likeness(measured.rows, control.learning, names)
    if not found:
        raise InputError("it has no likeness of attention outputs here")
    for one in found.values():
        one["line"] |= {"name": control.name, "line": {"color": "@grey", "dash": "dot", "width": 1}}
    return {**predictions(trace), "likeness": found, "teaches": not control.always and right > base}


def on_untrained(cache: BenchCache, seed: int, steps: int | None, learning: LearnerSpec, device: str) -> Bench:
    """The same lesson on the model with untrained weights, loaded when it is first asked for."""
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

    if cache.untrained is None:
        trained = cache.bench.model
        if (size := trained.hf.num_parameters()) > TWICE:
            raise InputError(f"a model of {size:.2g} weights is not held twice; run a study to have it")
        model = Model.load(
            trained.name, device=device, dtype=trained.precision, variant="untrained", init_seed=seed, offline=True
        )
        cache.untrained = type(cache)(Bench(model, cache.bench.lesson, want=cache.bench.want))
    return cache.untrained.bench_for(learning, steps)
