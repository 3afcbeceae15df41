"""What a study comes to: its cells, and what has to be chosen before they can be computed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError, suggest
from dualscope.core.response_products import plant_name
from dualscope.core.spec import (
    IN_CONTEXT,
    PLAIN,
    ZERO_SHOT,
    CellSpec,
    EpisodeSpec,
    InterventionSpec,
    LearnerSpec,
    ModelSpec,
    companions,
    without_demonstrations,
)
from dualscope.core.words import (
    CONTROL_ROLES,
    JUDGED,
    ORDERS,
    PLACE_SETS,
    Control,
    DemoLabels,
    Precision,
    Role,
    Variant,
)
from dualscope.studies.choices import ChoiceJob
from dualscope.studies.paths import named_model
from dualscope.studies.resolve import LearnerFacts, Resolver, other_task
from dualscope.studies.study import InterventionEntry, LearnerEntry, Study, TaskEntry
from dualscope.tasks import Task
from dualscope.tasks.episode import check_same_classes
from dualscope.tasks.relabelling import expected_differences, relabellings

MANY_SHOTS = 1000
"""With so many of every class any number of draws is there, and to find them takes long."""


@dataclass(frozen=True)
class PlannedLearner:
    """A learner that a study asks for on a task, at one rate, with its references."""

    facts: LearnerFacts
    learning: LearnerSpec
    reference: LearnerSpec
    other_task: tuple[str, str] | None = None
    chosen: tuple[str, str, str] | None = None  # its name, the options that it was given, what was chosen


@dataclass
class Plan:
    """A study's cells, in the order in which they are best computed, and the choices they still wait for."""

    cells: list[CellSpec] = field(default_factory=list)
    choices: list[ChoiceJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)  # what a learner cannot have, which is no news: said on request
    whole: list[CellSpec] = field(default_factory=list)  # the cells of all shards

    def episodes(self) -> dict[EpisodeSpec, list[CellSpec]]:
        """The cells by what they share, models first: a model's episodes follow one another."""
        groups: dict[EpisodeSpec, list[CellSpec]] = {}
        for cell in self.cells:
            groups.setdefault(cell.episode, []).append(cell)
        return groups


def parse_shard(text: str) -> tuple[int, int]:
    """``2/8``: the second of eight parts.

    >>> parse_shard("2/8")
    (2, 8)
    """
    number, _, shards = text.partition("/")
    plain = all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, shards))
    if not plain or not 1 <= int(number) <= int(shards):
        raise InputError(f"--shard {text}: expected i/n with 1 <= i <= n, for example 2/8")
    return int(number), int(shards)


RESPONDING: tuple[Role, ...] = ("hypothesis", "ceiling")
SCALE: dict[Control, int] = {"reorder": ORDERS, "places": PLACE_SETS}
"""In-context learning again, so often: in other orders, and with the labels in their places behind other inputs."""
OWN = "own"  # compared with the learner itself, without its control


class Planner:
    """Lays out the grid. ``choices`` are the settings chosen so far (JSON) by the job's key; ``weights`` by model name,
    and so are the ``dtypes`` of a study that leaves them to us.
    """

    def __init__(
        self,
        study: Study,
        resolver: Resolver,
        weights: Mapping[str, str],
        recorded: Mapping[tuple[str, str], float] | None = None,
        choices: Mapping[str, str] | None = None,
        dtypes: Mapping[str, Precision] | None = None,
    ) -> None:
        self.study, self.resolver, self.weights = study, resolver, weights
        self.recorded, self.choices, self.dtypes = dict(recorded or {}), dict(choices or {}), dtypes or {}
        self._data = {entry.task: resolver.task(entry.task) for entry in study.tasks}
        _check_names("tasks", [resolver.task(entry.task).name for entry in study.tasks])
        _check_names("models", [ModelSpec(m, "", called=name).name for name, m in map(named_model, study.models)])
        self._notes: dict[str, None] = {}
        self._asides: dict[str, None] = {}

    def plan(self) -> Plan:
        plan, jobs = Plan(), {}
        metrics, code = self.resolver.metrics()
        for model, entry, episode in self._episodes():
            asked, waiting = self._planned(model, entry, episode.demo_labels)
            jobs.update({job.key: job for job in waiting})
            # Where queries come from the demonstrations' own split, they depend on the demonstrations.
            splits = self._data[entry.task].config.splits
            alone = episode if splits.train == splits.evaluation else without_demonstrations(episode)
            make = partial(CellSpec, metrics=metrics, per_head=self.study.per_head, per_query=self.study.per_query)
            plan.cells.append(make(alone, ZERO_SHOT, "baseline", code=code))
            roles = {other.learning: other.facts.role for other in asked}
            orders = tuple(other for other in roles if other.is_reordered(IN_CONTEXT))
            plan.cells.append(make(episode, IN_CONTEXT, "reference", IN_CONTEXT, orders, code=code))
            by_learning = {other.learning: other for other in asked}
            for own in asked:
                beside = companions(own.learning, own.facts.role, own.reference, roles)
                against = [by_learning[own.reference]] if own.reference in by_learning else []
                involved = [own, *(by_learning[other] for other in beside), *against]
                foreign = next((other.facts.code for other in involved if other.facts.code), "")
                borrowed = next((other.other_task for other in involved if other.other_task), None)
                plan.cells.append(
                    make(
                        episode,
                        own.learning,
                        own.facts.role,
                        own.reference,
                        beside,
                        code=foreign or code,
                        other_task=borrowed,
                        chosen=tuple(dict.fromkeys(one.chosen for one in involved if one.chosen)),
                        family=own.facts.family,
                    )
                )
            plan.cells += self._response_cells(episode, asked, code)
        plan.cells = list(dict.fromkeys(plan.cells))
        plan.choices, plan.notes, plan.whole = list(jobs.values()), list(self._notes), plan.cells
        plan.asides = list(self._asides)
        return plan

    def _response_cells(self, episode: EpisodeSpec, asked: Sequence[PlannedLearner], code: str) -> Iterator[CellSpec]:
        """The learners on the draws of every intervention: in-context learning first, its scale, then all others."""
        for entry in self.study.interventions:
            if episode.model.variant not in entry.variants:
                continue
            kind, foreign = self.resolver.intervention(entry.kind)
            if kind == JUDGED and (why := self._cannot_relabel(episode, entry)):
                self._notes[f"left out {kind} on {episode.task}: {why}"] = None
                continue
            queries = min(episode.queries, entry.queries)
            # Responses are differences between draws, far above float32's rounding; float64 would take twice as long.
            exact = self.study.dtype == "auto" and episode.model.dtype == "float64"
            model = replace(episode.model, dtype="float32") if exact else episode.model
            balanced = entry.balanced or episode.balanced
            there = replace(episode, model=model, balanced=balanced, queries=queries)
            spec = InterventionSpec(kind, entry.draws)
            make = partial(CellSpec, there, reference=IN_CONTEXT, intervention=spec)
            own = [one for one in asked if one.learning.control is None and one.facts.role in RESPONDING]
            plants = tuple(self._plants(entry, own)) if kind == JUDGED else ()
            yield make(IN_CONTEXT, "reference", code=foreign or code)
            for control, count in SCALE.items() if kind == JUDGED else ():
                for draw in range(1, count + 1):
                    options = {"draw": draw} if draw > 1 else {}
                    scale = LearnerSpec.of(IN_CONTEXT.name, options, control)
                    yield make(scale, CONTROL_ROLES[control], code=foreign or code)
            for one in own:
                if one.reference == IN_CONTEXT:
                    yield make(
                        one.learning,
                        one.facts.role,
                        code=foreign or next((o.facts.code for o in (one, *own) if o.facts.code), "") or code,
                        family=one.facts.family,
                        plants=plants,
                        other_task=one.other_task,
                        chosen=tuple(dict.fromkeys(other.chosen for other in own if other.chosen)),
                    )

    def _cannot_relabel(self, episode: EpisodeSpec, entry: InterventionEntry) -> str:
        """Why the labels of so many demonstrations cannot be permuted; empty where they can.

        As far as the plan knows: a task's own list is looked at, and of a draw that every class is there alike.
        """
        task = next(task for task in self._data.values() if task.name == episode.task)
        listed = task.demonstrations
        if listed is None and episode.shots > MANY_SHOTS:
            return ""
        labels = [i % len(task.labels) for i in range(episode.shots)]
        if listed is not None:
            labels = [example.label for example in listed[: episode.shots]]
        try:
            relabellings(labels, entry.draws, episode.seed)
        except InputError as error:
            return str(error)
        if expected_differences(labels) < len(labels) / 4:
            return (
                f"{len(labels)} demonstrations have too few of some class: permuting their labels would change less "
                "than a quarter of them"
            )
        return ""

    def _plants(self, entry: InterventionEntry, asked: Sequence[PlannedLearner]) -> Iterator[tuple[str, LearnerSpec]]:
        """Which hypotheses are planted, and what rows call the plants."""
        named = entry.plants if isinstance(entry.plants, tuple) else None
        known = {one.learning.name for one in asked}
        for name in named or ():
            if name not in known:
                raise InputError(f"interventions: plants: '{name}' is no learner of this study: {suggest(name, known)}")
        twins = Counter(one.learning.label for one in asked)
        for one in asked:
            learning = one.learning
            if entry.plants is False or one.facts.role != "hypothesis":
                continue
            if named is not None and learning.name not in named:
                continue
            if not one.facts.can_be_planted:
                if named is not None:
                    raise InputError(f"interventions: plants: '{learning.name}' cannot be planted in a model")
                self._asides[f"{learning.label} is not planted: it does not change the model as a whole"] = None
                continue
            rate = "" if twins[learning.label] == 1 else f" lr={learning.lr:g}"
            yield plant_name(learning.label + rate), learning
            if entry.perturbed and learning.lr is not None:
                for factor, words in ((1 / 3, "a third"), (3.0, "three times")):
                    other = replace(learning, lr=learning.lr * factor)
                    yield plant_name(f"{learning.label}{rate} at {words} of its rate"), other

    def _dtype(self, model: str) -> Precision:
        """What the study asks for, or what was found to suit the model."""
        return self.dtypes.get(model, "float32") if self.study.dtype == "auto" else self.study.dtype

    def _episodes(self) -> Iterator[tuple[ModelSpec, TaskEntry, EpisodeSpec]]:
        study = self.study
        for called, source in map(named_model, study.models):
            for init, variant, entry, seed in self._draws():
                load = variant, init, self._dtype(source), study.adapter, study.adapter_mode
                model = ModelSpec(source, self.weights[source], *load, called)
                task = self._data[entry.task]
                by_seed = (entry.seeds or study.seeds).index(seed)
                orders = (by_seed,) if study.orders == "by-seed" else study.orders
                axes = product(orders, study.shots, study.demo_labels, study.queries_from)
                for order, shots, labels, asked in axes:
                    yield (
                        model,
                        entry,
                        EpisodeSpec(
                            model=model,
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
                            gd_order=study.gd_order if order else "same",
                            chat=study.chat,
                            subset=study.subset,
                            queries_from=self._asked_about(task, asked),
                        ),
                    )

    def _asked_about(self, task: Task, name: str | None) -> tuple[str, str] | None:
        """Another task that the queries are of; its classes have to be the same."""
        if name is None:
            return None
        other = self.resolver.task(name)
        check_same_classes(task, other)
        return other.name, other.digest

    def _draws(self) -> list[tuple[int | None, Variant, TaskEntry, int]]:
        """What has the same weights together, to load it once; variants of an init seed too, to draw them once."""
        draws: list[tuple[int | None, Variant, TaskEntry, int]] = []
        for variant, entry in product(self.study.variants, self.study.tasks):
            for seed in entry.seeds or self.study.seeds:
                if variant == "trained":
                    inits: tuple[int | None, ...] = (None,)
                else:
                    inits = self.study.init_seeds or (seed,)
                draws += [(init, variant, entry, seed) for init in inits]
        return sorted(draws, key=lambda draw: -1 if draw[0] is None else draw[0])

    def _planned(
        self, model: ModelSpec, task: TaskEntry, labels: DemoLabels
    ) -> tuple[list[PlannedLearner], list[ChoiceJob]]:
        """The study's learners and their controls on a task, with their rates, and what each is compared with."""
        found: list[PlannedLearner] = []
        waiting: list[ChoiceJob] = []
        for entry in self._entries():
            facts = self._facts(entry)
            if facts.role in ("baseline", "reference"):
                continue
            if facts.refused:
                raise InputError(f"learner '{entry.learner}' under {entry.control}: {facts.refused}")
            if entry.variants is not None and model.variant not in entry.variants:
                self._note_absence(facts.learning, entry.variants)
                continue
            other = self._other(facts, task)
            if facts.needs_other and other is None:
                continue
            self._reference(entry, facts.learning)  # refused now, and not once a rate was chosen
            rates = self._rates(entry, facts, model, task, labels)
            settings = rates if isinstance(rates, ChoiceJob) else self._settings(facts, model, task, labels)
            if isinstance(rates, ChoiceJob) or isinstance(settings, ChoiceJob):
                assert isinstance(settings, ChoiceJob)
                waiting.append(settings)
                continue
            for lr in rates:
                learning = replace(facts.learning, lr=lr)
                found.append(PlannedLearner(facts, learning, self._reference(entry, learning), other, settings))
        # Rate by rate, so that what learners of one rate share can be let go of before the next.
        found.sort(key=lambda one: one.learning.lr or 0.0)
        return list(dict.fromkeys(found)), waiting

    def _entries(self) -> Iterator[LearnerEntry]:
        """The study's own entries, then every learner under test under every control of the study."""
        yield from self.study.learners
        for entry in self.study.learners:
            if entry.control is not None or self._facts(entry).role != "hypothesis":
                continue
            for control in self.study.controls:
                variants = control.variants or entry.variants
                if control.variants and entry.variants:
                    variants = tuple(v for v in control.variants if v in entry.variants)
                own: dict[str, Any] = {"control": control.control, "variants": variants}
                own |= {"reference": OWN if control.against_itself else entry.reference}
                under = entry.model_copy(update=own | {"options": {**entry.options, **control.options}})
                if why := (facts := self._facts(under)).refused:
                    self._asides[f"left out {facts.learning.label}: {why}"] = None
                else:
                    yield under

    def _facts(self, entry: LearnerEntry) -> LearnerFacts:
        return self.resolver.learner(entry.learner, entry.options, entry.control)

    def _note_absence(self, learning: LearnerSpec, variants: tuple[str, ...]) -> None:
        if not set(variants) & set(self.study.variants):
            asked = " or ".join(variants)
            self._notes[
                f"left out {learning.label}: it is asked for on {asked} only, which the study does not have"
            ] = None

    def _reference(self, entry: LearnerEntry, learning: LearnerSpec) -> LearnerSpec:
        """What the learner is compared with; an unknown one is refused here, not in every cell."""
        if entry.reference == IN_CONTEXT.name:
            return IN_CONTEXT
        if entry.reference == OWN:
            known = self._facts(entry).learning
            own = {k: v for k, v in known.settings.items() if k not in self._control_options(entry)}
            return LearnerSpec.of(known.name, own, lr=learning.lr)
        facts = self.resolver.learner(entry.reference)
        return replace(facts.learning, lr=learning.lr if facts.needs_lr else None)

    def _control_options(self, entry: LearnerEntry) -> set[str]:
        """Options that are the control's, which the learner without it does not have."""
        return {name for control in self.study.controls if control.control == entry.control for name in control.options}

    def _rates(
        self, entry: LearnerEntry, facts: LearnerFacts, model: ModelSpec, task: TaskEntry, labels: DemoLabels
    ) -> tuple[float | None, ...] | ChoiceJob:
        """The learning rates of a learner, or what has to be chosen first: all others take plain gd's rate."""
        if not facts.needs_lr:
            return (None,)
        asked = entry.lr or task.lr or self.study.lr
        if not isinstance(asked, str):
            return asked
        name = self._data[task.task].name
        if asked == "recorded" and not self.study.chat and (model.source, name) in self.recorded:
            return (self.recorded[model.source, name],)
        own = asked == "own" or facts.open is not None
        job = self._job(facts if own else self.resolver.learner(PLAIN), model, task, labels)
        found = self.choices.get(job.key)
        return job if found is None else (float(json.loads(found)["lr"]),)

    def _settings(
        self, facts: LearnerFacts, model: ModelSpec, task: TaskEntry, labels: DemoLabels
    ) -> tuple[str, str, str] | ChoiceJob | None:
        """What was chosen for a learner that leaves options open, or the job of choosing."""
        if facts.open is None:
            return None
        job = self._job(facts, model, task, labels)
        if (found := self.choices.get(job.key)) is None:
            return job
        settings = {k: v for k, v in json.loads(found).items() if not (k == "lr" and facts.needs_lr)}
        return job.learner, job.options, canonical(settings)

    def _job(self, facts: LearnerFacts, model: ModelSpec, task: TaskEntry, labels: DemoLabels) -> ChoiceJob:
        """A choice on the trained variant, over the study's seeds."""
        own = self._data[task.task]
        return ChoiceJob(
            model=replace(model, variant="trained", init_seed=None),
            task=own.name,
            data=own.digest,
            seeds=task.seeds or self.study.seeds,
            shots=max(self.study.shots),
            queries=self.study.queries,
            balanced=self.study.balanced,
            gd_demonstrations=self.study.gd_demonstrations,
            demo_labels="abstract" if labels == "abstract" else "gold",
            learner=facts.learning.name,
            options=facts.open or facts.own_options,
            rounds=facts.rounds,
            chooses_lr=facts.needs_lr,
            code=facts.code,
        )

    def _other(self, facts: LearnerFacts, task: TaskEntry) -> tuple[str, str] | None:
        """The task that this one's learners are taught from on purpose, where they are."""
        if not facts.needs_other:
            return None
        own = self._data[task.task]
        other = other_task(own, list(self._data.values()))
        if other is None:
            why = "which the study does not have" if len(self._data) < 2 else "and every other one shares some with it"
            self._notes[
                f"left out {facts.learning.label} on {own.name}: it needs a task of other label words, {why}"
            ] = None
            return None
        return other.name, other.digest


def _check_names(what: str, names: list[str]) -> None:
    """Rows tell models and tasks by their names alone."""
    for name in names:
        if not name.isprintable():
            raise InputError(f"study: {name!r} cannot be a name in tables: rename it, or name it (--model NAME=FOLDER)")
        if names.count(name) > 1:
            how = "name them, as in --model a=FOLDER --model b=FOLDER" if what == "models" else "rename one"
            raise InputError(f"study: two {what} are called '{name}', and rows could not tell them apart: {how}")
