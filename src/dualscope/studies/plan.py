"""From a study to its cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from dualscope.core.errors import InputError
from dualscope.studies.cell import Cell, Learning, Place, Sitting, fingerprint
from dualscope.studies.config import LearnerEntry, Study, TaskEntry
from dualscope.studies.resolve import Resolved, Resolver

ZERO_SHOT, IN_CONTEXT = Learning("zero-shot"), Learning("in-context")
NULLS = ("null-context", "zero-shot-offset")
GD = "gd"


@dataclass(frozen=True)
class RateJob:
    """A learning rate to be chosen: per model and task, on the trained variant, over the study's seeds."""

    place: Place
    task: str
    data: str
    seeds: tuple[int, ...]
    shots: int
    queries: int
    balanced: bool
    gd_demonstrations: str

    @property
    def key(self) -> str:
        return fingerprint({**asdict(self), "place": self.place.facts})

    def __str__(self) -> str:
        return f"{self.place.name} · {self.task} · learning rate over {len(self.seeds)} seeds"


@dataclass
class Plan:
    """A study's cells, in the order in which they are best computed, and the rates they still wait for."""

    cells: list[Cell] = field(default_factory=list)
    rates: list[RateJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: list[Cell] = field(default_factory=list)  # the cells of all shards

    def sittings(self) -> dict[Sitting, list[Cell]]:
        """The cells by what they share, models first: a model's sittings follow one another."""
        groups: dict[Sitting, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.sitting, []).append(cell)
        return groups


class Planner:
    """Lays out the grid. ``rates`` are those chosen so far, by the job's key; ``weights`` by model name."""

    def __init__(
        self,
        study: Study,
        resolver: Resolver,
        weights: Mapping[str, str],
        rates: Mapping[str, float],
        recorded: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self.study, self.resolver, self.weights, self.rates = study, resolver, weights, rates
        self.recorded = dict(recorded or {})
        self._data = {entry.task: resolver.task(entry.task) for entry in study.tasks}
        _check_names("tasks", [resolver.task(entry.task).name for entry in study.tasks])
        _check_names("models", [Place(model, "").name for model in study.models])
        self._notes: dict[str, None] = {}

    def plan(self) -> Plan:
        plan, jobs = Plan(), {}
        metrics, code = self.resolver.metrics()
        shared: dict[str, Any] = {
            "metrics": metrics,
            "code": code,
            "subset": self.study.subset,
            "per_head": self.study.per_head,
            "per_query": self.study.per_query,
        }
        for place, entry, sitting in self._sittings():
            learnings, waiting = self._learnings(place, entry)
            jobs.update({job.key: job for job in waiting})
            # Where queries come from the demonstrations' own split, they depend on the demonstrations.
            splits = self._data[entry.task].config.splits
            alone = sitting if splits.train == splits.evaluation else sitting.without_demonstrations()
            plan.cells.append(Cell(alone, ZERO_SHOT, **shared))
            plan.cells += [Cell(sitting, *what, **shared) for what in _with_company(learnings)]
        plan.cells = list(dict.fromkeys(plan.cells))
        plan.rates, plan.notes, plan.whole = list(jobs.values()), list(self._notes), plan.cells
        return plan

    def _sittings(self) -> Iterator[tuple[Place, TaskEntry, Sitting]]:
        study = self.study
        for model, variant in product(study.models, study.variants):
            for init, entry, seed in self._draws(variant):
                place = Place(model, self.weights[model], variant, init, study.dtype)
                task = self._data[entry.task]
                for order, shots, labels in product(study.orders, study.shots, study.demo_labels):
                    yield (
                        place,
                        entry,
                        Sitting(
                            place=place,
                            task=task.name,
                            data=task.digest,
                            seed=seed,
                            order=order,
                            shots=shots,
                            demo_labels=labels,
                            corrupt=study.corrupt if labels != "gold" else "both",
                            balanced=study.balanced,
                            queries=study.queries,
                            read_at=study.read_at,
                            gd_demonstrations=study.gd_demonstrations,
                        ),
                    )

    def _draws(self, variant: str) -> list[tuple[int | None, TaskEntry, int]]:
        """Init seeds, tasks and seeds; those with the same weights together, so that a model is loaded once."""
        draws: list[tuple[int | None, TaskEntry, int]] = []
        for entry in self.study.tasks:
            for seed in entry.seeds or self.study.seeds:
                if variant == "trained":
                    inits: tuple[int | None, ...] = (None,)
                else:
                    inits = self.study.init_seeds or (seed,)
                draws += [(init, entry, seed) for init in inits]
        return sorted(draws, key=lambda draw: -1 if draw[0] is None else draw[0])

    def _learnings(self, place: Place, task: TaskEntry) -> tuple[list[tuple[Learning, str]], list[RateJob]]:
        """The study's learners with their rates on a task, each with the name of its reference."""
        learnings: list[tuple[Learning, str]] = []
        waiting: list[RateJob] = []
        for entry in self.study.learners:
            resolved = self.resolver.learner(entry)
            if resolved.name in (ZERO_SHOT.learner, IN_CONTEXT.learner):
                continue
            if entry.variants is not None and place.variant not in entry.variants:
                self._note_absence(resolved.name, entry.variants)
                continue
            other = self._other(resolved, task)
            if resolved.needs_other and other is None:
                continue
            learning = Learning(resolved.name, resolved.options, None, resolved.code, other)
            reference = self._reference(entry)
            if not resolved.needs_rate:
                learnings.append((learning, reference))
                continue
            chosen = self._rates(entry, place, task)
            if isinstance(chosen, RateJob):
                waiting.append(chosen)
            else:
                learnings += [(replace(learning, lr=rate), reference) for rate in chosen]
        # Rate by rate, so that what learners of one rate share can be let go of before the next.
        learnings.sort(key=lambda pair: pair[0].lr or 0.0)
        return learnings, waiting

    def _note_absence(self, learner: str, variants: tuple[str, ...]) -> None:
        if not set(variants) & set(self.study.variants):
            asked = " or ".join(variants)
            self._notes[
                f"left out {learner}: it is asked for on {asked} only, which the study does not have"
            ] = None

    def _reference(self, entry: LearnerEntry) -> str:
        """What the learner is compared with, by its own name; an unknown one is refused here, not in every cell."""
        if entry.reference == IN_CONTEXT.learner:
            return entry.reference
        return self.resolver.learner(LearnerEntry(learner=entry.reference)).name

    def _rates(self, entry: LearnerEntry, place: Place, task: TaskEntry) -> tuple[float, ...] | RateJob:
        asked = entry.lr or task.lr or self.study.lr
        if not isinstance(asked, str):
            return asked
        name = self._data[task.task].name
        if asked == "recorded" and (place.model, name) in self.recorded:
            return (self.recorded[place.model, name],)
        job = RateJob(
            place=replace(place, variant="trained", init_seed=None),
            task=name,
            data=self._data[task.task].digest,
            seeds=task.seeds or self.study.seeds,
            shots=max(self.study.shots),
            queries=self.study.queries,
            balanced=self.study.balanced,
            gd_demonstrations=self.study.gd_demonstrations,
        )
        return (self.rates[job.key],) if job.key in self.rates else job

    def _other(self, resolved: Resolved, task: TaskEntry) -> tuple[str, str] | None:
        """The next task of the study, for the controls that are taught another one."""
        if not resolved.needs_other:
            return None
        names = [entry.task for entry in self.study.tasks]
        if len(names) < 2:
            self._notes[f"left out {resolved.name}: it draws from another task, and the study has one"] = None
            return None
        other = self._data[names[(names.index(task.task) + 1) % len(names)]]
        return other.name, other.digest


def _with_company(
    learnings: list[tuple[Learning, str]],
) -> Iterator[tuple[Learning, Learning, tuple[Learning, ...]]]:
    """Each learner with what it is compared with, and what its metrics need beside it; in-context comes first."""
    yield IN_CONTEXT, IN_CONTEXT, ()
    nulls = tuple(learning for learning, _ in learnings if learning.learner.startswith(NULLS))
    for learning, reference in learnings:
        same_rate = [other for other, _ in learnings if other.lr == learning.lr]
        beside: tuple[Learning, ...] = ()
        if learning.lr is not None and reference == IN_CONTEXT.learner:
            plain = [other for other in same_rate if other.learner == GD and other.options == "{}"]
            beside = (*nulls, *(other for other in plain if other != learning))
        if reference == IN_CONTEXT.learner:
            against = IN_CONTEXT
        else:
            found = [other for other in same_rate if other.learner == reference and other.options == "{}"]
            against = found[0] if found else Learning(reference, lr=learning.lr)
        yield learning, against, beside


def _check_names(what: str, names: list[str]) -> None:
    """Rows tell models and tasks by their names alone."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"study: two {what} are called '{name}', and rows could not tell them apart: rename one"
            )
