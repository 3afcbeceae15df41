"""Compare learners on one episode, in a notebook or a script."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dualscope.core.companions import companions
from dualscope.core.errors import InputError, suggest
from dualscope.core.learning import IN_CONTEXT, ZERO_SHOT
from dualscope.core.rows import MetricRow
from dualscope.studies.rates import recorded_rates
from dualscope.tasks import Episode, Lesson, Task, make_lesson

if TYPE_CHECKING:
    from dualscope.learners import Learned
    from dualscope.models import Model, Trace

TABLE = ("learner", "metric", "reference", "value", "low", "high", "n")


class ComparedRow(MetricRow):
    """A metric's row, and whose it is: the learner by its label."""

    learner: str
    control: str | None
    role: str


@dataclass(frozen=True)
class Comparison:
    """What several learners made of the same episode, each compared with in-context learning."""

    lesson: Lesson
    learned: Mapping[str, Learned]
    lr: float | None
    rows: tuple[ComparedRow, ...]

    @property
    def traces(self) -> dict[str, Trace]:
        """The traces by learner, zero-shot and in-context among them."""
        return {name: learned.trace for name, learned in self.learned.items()}

    def table(self, *metrics: str) -> pa.Table:
        """The aggregate rows (of these metrics, or all): ``table().to_pandas()`` in a notebook."""
        chosen = [
            row for row in self.rows if row["layer"] is None and row["head"] is None and row["step"] is None
        ]
        for metric in metrics:
            self._check(metric, chosen)
        wanted = [row for row in chosen if not metrics or row["metric"] in metrics]
        plain: list[Mapping[str, Any]] = list(wanted)
        return pa.table({name: [row[name] for row in plain] for name in TABLE})

    def layers(self, metric: str) -> dict[str, np.ndarray]:
        """A metric layer by layer, [layers] a learner, layers counted from the input."""
        chosen = [
            row
            for row in self.rows
            if row["layer"] is not None and row["head"] is None and row["step"] is None
        ]
        self._check(metric, chosen)
        found: dict[str, dict[int, float]] = {}
        for row in chosen:
            if row["metric"] == metric and row["layer"] is not None:
                found.setdefault(row["learner"], {})[row["layer"]] = row["value"]
        return {
            name: np.array([values.get(layer, math.nan) for layer in range(max(values) + 1)])
            for name, values in found.items()
        }

    @staticmethod
    def _check(metric: str, rows: Sequence[Mapping[str, Any]]) -> None:
        known = {row["metric"] for row in rows}
        if metric not in known:
            raise InputError(f"no such metric here: '{metric}': {suggest(metric, known)}")

    def __str__(self) -> str:
        accuracy = {row["learner"]: row["value"] for row in self.rows if row["metric"] == "accuracy"}
        episode = self.lesson.episode
        head = f"{episode.task.name}, {self.lesson.shots_used} shots, seed {episode.seed}, lr {self.lr}"
        return "\n".join([head, *(f"  {name:20} accuracy {value:.3f}" for name, value in accuracy.items())])


def compare(
    model: Model | str | Path,
    task: Task | Episode | str | Path,
    learners: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = ("gd", "lcgd"),
    shots: int = 32,
    seed: int = 0,
    *,
    lr: float | None = None,
    queries: int = 200,
    metrics: Sequence[str] | None = None,
    per_head: bool = False,
    data: str | Path | None = None,
    **episode: Any,
) -> Comparison:
    """Show a model the same demonstrations in its prompt and by gradient descent, and compare the changes.

    ``learners`` are names, or mappings with a name and options (``{"learner": "lcgd", "readout": "attention"}``);
    one may stand alone. ``lcgd:random-labels`` is a learner under a control.
    An `Episode` (of your own demonstrations and queries: `Episode.of`) may stand in place of the task; ``shots``,
    ``seed`` and ``queries`` are then its own.
    Without ``lr`` the model card's rate for the task is used, or one is chosen as ``--lr auto`` does.
    Further keywords go to `Episode.draw` (``order``, ``balanced``, ``demo_labels``, ``corrupt``).

    >>> from dualscope import compare
    >>> c = compare("embedded", "embedded-sst2", ["gd", "lcgd"], shots=8, queries=20)
    >>> c.lr  # recorded in the model's card
    1.0
    >>> sorted(c.traces)
    ['gd', 'in-context', 'lcgd', 'zero-shot']
    >>> c.table("accuracy").num_rows, c.layers("sim_aou")["gd"].ndim
    (4, 1)
    """
    from dualscope.learners import LEARNERS, Bench, choose_rate, identify, role_of
    from dualscope.metrics import METRICS, expand
    from dualscope.metrics.measured import measure_cell
    from dualscope.models import Model

    if lr is not None:
        # numpy's numbers are Real too; True is, and is no rate.
        if not isinstance(lr, numbers.Real) or isinstance(lr, bool) or not 0 < lr < math.inf:
            raise InputError(f"lr must be one number above 0 (or None, to have it chosen), found {lr!r}")
        lr = float(lr)
    model = Model.load(str(model), dtype="auto") if isinstance(model, str | Path) else model
    given = task if isinstance(task, Episode) else None
    if given is not None:
        shots, seed, queries = given.shots, given.seed, len(given.queries)
        if episode:
            raise InputError(f"an episode is given, so '{next(iter(episode))}' has been decided already")
    task = task.task if isinstance(task, Episode) else task
    task = task if isinstance(task, Task) else Task.load(task, data=data)
    asked = [_asked(entry) for entry in ([learners] if isinstance(learners, str | Mapping) else learners)]
    named = [identify(name, options, control) for name, control, options in asked]
    if lr is None and any(LEARNERS[learning.name].needs_rate for learning in named):
        recorded = recorded_rates([model.name], [task.name]) if _has_source(model) else {}
        lr = (
            recorded.get((model.name, task.name))
            or choose_rate(
                model, task, [seed], shots, queries=queries, balanced=bool(episode.get("balanced"))
            ).rate
        )
    drawn = given or Episode.draw(task, shots=shots, seed=seed, queries=queries, **episode)
    lesson = make_lesson(drawn, model.tokenizer, model.max_positions)
    chosen = expand(metrics)
    want: frozenset[str] = frozenset().union(*(METRICS[name].wants for name in chosen))
    bench = Bench(model, lesson, want=want)
    under_way = [
        replace(learning, rate=lr if LEARNERS[learning.name].needs_rate else None) for learning in named
    ]
    roles = {learning: role_of(learning) for learning in dict.fromkeys((ZERO_SHOT, IN_CONTEXT, *under_way))}
    learned: dict[str, Learned] = {}
    rows: list[ComparedRow] = []
    for learning, role in roles.items():
        reference = None if learning == ZERO_SHOT else IN_CONTEXT
        beside = companions(learning, role, reference, roles)
        found = measure_cell(bench, learning, beside, reference=reference, metrics=chosen, per_head=per_head)
        learned[learning.label] = found.result.learned
        rows += [
            {"learner": learning.label, "control": learning.control, "role": role, **row}
            for row in found.rows
        ]
    return Comparison(lesson, learned, lr, tuple(rows))


def _asked(entry: str | Mapping[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
    """Name, control and options of what a person asked for."""
    if isinstance(entry, str):
        name, *control = entry.split(":", 1)
        return name, control[0] if control else None, {}
    rest = dict(entry)
    return rest.pop("learner"), rest.pop("control", None), {**rest.pop("options", {}), **rest}


def _has_source(model: Model) -> bool:
    """Whether a model was loaded by a name that has files, rather than built in memory."""
    return model.name == "embedded" or Path(model.name).is_dir()
