"""The answer of a run: do learners respond to the labels as in-context learning does? No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from dualscope.core.canonical import fingerprint
from dualscope.core.response_products import OWN, ComparedPart, Part, parts_of, plant_name, weighted
from dualscope.core.rows import Row
from dualscope.core.spec import IN_CONTEXT, PLAIN, CellSpec, EpisodeSpec, LearnerSpec
from dualscope.core.statistics import finite_mean, holm
from dualscope.core.words import JUDGED, Family, Level, Role
from dualscope.findings.answer import short
from dualscope.findings.response_decision import (
    FLOOR,
    FOUND,
    IGNORED,
    REPAIRINGS,
    SEEDS,
    Decision,
    EpisodePair,
    OverSeeds,
    RepairingTest,
    ResponseWord,
    decide,
    fisher,
    repairing_test,
    simultaneous,
)
from dualscope.findings.response_words import headline, sentence
from dualscope.studies.run_folder.storage import RunFolder

FILE = "response.json"
RULES = 3  # grows with the rule, so that a stored answer of an older one is made anew
PARTS: tuple[Part, ...] = ("answers", "outputs")
Where = Literal["answers", "inside"]
NAMES: dict[Part, Where] = {"answers": "answers", "outputs": "inside"}
EpisodeKey = tuple[int, int, int | None]  # seed, order, init seed


@dataclass
class CellResponse:
    """One response cell as it is stored: products by reference and part, and the rows beside them."""

    role: Role
    family: Family | None
    levels: tuple[Level | None, ...]
    parts: list[ComparedPart]
    shares: dict[tuple[str, str | None], float]
    """learned_share and learned_share_aou, by metric and reference (None: the learner's own)."""

    def pair(self, reference: str, part: Part) -> EpisodePair | None:
        found = tuple(one for one in self.parts if one.reference == reference and one.part == part)
        return EpisodePair(found, self.levels) if found else None

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys(part.reference for part in self.parts if part.reference != OWN))


@dataclass
class TaskResponses:
    """The response cells of a model and setting on one task, by learner and episode."""

    task: str
    cells: dict[LearnerSpec, dict[EpisodeKey, CellResponse]] = field(default_factory=dict)

    def pairs(self, learning: LearnerSpec, reference: str, part: Part) -> dict[EpisodeKey, EpisodePair]:
        found = {e: cell.pair(reference, part) for e, cell in self.cells.get(learning, {}).items()}
        return {episode: pair for episode, pair in found.items() if pair is not None}

    def share(self, learning: LearnerSpec, metric: str, reference: str | None = None) -> float:
        """The mean over episodes of a learned share; NaN where there is none."""
        return finite_mean([c.shares.get((metric, reference), math.nan) for c in self.cells.get(learning, {}).values()])

    @property
    def hypotheses(self) -> list[LearnerSpec]:
        return [one for one, cells in self.cells.items() if next(iter(cells.values())).role == "hypothesis"]

    @property
    def ceilings(self) -> list[LearnerSpec]:
        """Learners that may look at ICL's own traces: shown on the scale, never judged."""
        roles = {one: next(iter(cells.values())).role for one, cells in self.cells.items()}
        return [one for one, role in roles.items() if role == "ceiling" and one.control is None]

    def again(self, control: str) -> list[LearnerSpec]:
        """In-context learning under a control, every draw of it."""
        return [one for one in self.cells if (one.name, one.control) == (IN_CONTEXT.name, control)]


@dataclass(frozen=True)
class ResponseAnswer:
    """What can be said of one hypothesis on one task, of the answers or of what happens inside."""

    task: str
    learner: str
    learning: LearnerSpec
    family: str
    where: Where
    answer: ResponseWord
    value: OverSeeds  # r given copying
    target: float  # what it would be if it were this learner; NaN where that is not known
    targets: tuple[float, ...]
    plant: float  # r of the learner with its own plant; NaN where it has none
    reliability: float  # r of ICL in another order
    places: float  # r of ICL with its labels behind other inputs
    copying: float  # how alike copying is from one set of inputs to another
    learned: float  # the learned share of ICL's answers
    p: float
    p_holm: float
    band: tuple[float, float]
    why: str = ""
    seeds_needed: int | None = None

    @property
    def seeds(self) -> int:
        return len(self.value.seeds)


@dataclass(frozen=True)
class ResponseCeiling:
    """How far a learner comes that may look at in-context learning's own traces of spare examples."""

    task: str
    learner: str
    learning: LearnerSpec
    where: Where
    value: OverSeeds


@dataclass(frozen=True)
class ResponseVerdict:
    """The answers of one model and setting."""

    setting: EpisodeSpec
    variant: str
    answers: tuple[ResponseAnswer, ...]
    confusion: tuple[tuple[str, str, str, str, float], ...]
    """Task, plant, hypothesis, answers or inside, r: is what was planted found, and only that?"""
    rankings: dict[str, dict[str, OverSeeds]]
    """By task: every hypothesis' answers, with intervals that hold for all of them together."""
    order: dict[str, float] = field(default_factory=dict)
    ceilings: tuple[ResponseCeiling, ...] = ()

    @property
    def headline(self) -> str:
        return headline(self.answers)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = asdict(self) | {"setting": self.setting.setting_columns}
        found["answers"] = [
            {**plain, "learning": answer.learning.facts, "seeds": answer.seeds, "sentence": sentence(answer)}
            for answer, plain in zip(self.answers, found["answers"], strict=True)
        ]
        for one, as_data in zip(self.ceilings, found["ceilings"], strict=True):
            as_data["learning"] = one.learning.facts
        return found | {"headline": self.headline}


def response_verdicts(run: RunFolder, cells: Mapping[str, CellSpec], keep: bool = True) -> list[dict[str, Any]]:
    """For each model, variant and setting: the sentence and the answers in full.

    What is stored is taken where it is of the same cells; with ``keep`` what is reached anew is stored.
    """
    judged = {name: cell for name, cell in cells.items() if cell.intervention and cell.intervention.kind == JUDGED}
    if not judged:
        return []
    stamp = fingerprint([RULES, REPAIRINGS, *sorted(judged)])
    known = run.recall_verdicts(FILE, stamp)
    if known is not None:
        return known
    groups: dict[tuple[EpisodeSpec, str], dict[str, TaskResponses]] = {}
    for name, cell in judged.items():
        episode, task = cell.episode, cell.episode.task
        key = episode.setting, str(episode.model.variant)
        own = groups.setdefault(key, {}).setdefault(task, TaskResponses(task))
        draw = (episode.seed, episode.order, episode.model.init_seed)
        own.cells.setdefault(cell.learning, {})[draw] = read_response(run, name, cell)
    found = []
    for (setting, variant), tasks in sorted(groups.items(), key=lambda item: repr(item[0])):
        found.append(verdict_of(setting, variant, list(tasks.values())).to_dict())
    if keep:
        run.keep_verdicts(FILE, stamp, plain(found))
    return plain(found)  # type: ignore[no-any-return]


def read_response(run: RunFolder, name: str, cell: CellSpec) -> CellResponse:
    rows: list[Row] = run.rows([name]).to_pylist()
    shares = {
        (row["metric"], row["reference"]): row["value"]
        for row in rows
        if row["metric"] in ("learned_share", "learned_share_aou") and row["layer"] is None
    }
    parts, levels = parts_of(run.responses(name))
    return CellResponse(cell.role, cell.family, levels, parts, shares)


def verdict_of(
    setting: EpisodeSpec, variant: str, tasks: Sequence[TaskResponses], count: int = REPAIRINGS
) -> ResponseVerdict:
    """The answers: Holm over all judged pairs of hypothesis and task, answers and inside apart."""
    drafts = [
        _Draft.of(task, learning, part, count)
        for task in tasks
        for learning in task.hypotheses
        for part in PARTS
        if task.pairs(learning, IN_CONTEXT.label, part)
    ]
    answers: list[ResponseAnswer] = []
    for part in PARTS:
        own = [draft for draft in drafts if draft.part == part]
        adjusted = holm({str(i): draft.test.p for i, draft in enumerate(own)})
        answers += [draft.answer(adjusted[str(i)], own) for i, draft in enumerate(own)]
    # Plain gradient descent first: it is what the question names.
    answers.sort(key=lambda one: (one.task, one.where, one.learning.label != PLAIN, one.family != "gradient"))
    return ResponseVerdict(
        setting,
        variant,
        tuple(answers),
        tuple(_confusion(tasks)),
        {task.task: _ranking(task) for task in tasks},
        ceilings=tuple(_ceilings(tasks)),
    )


@dataclass(frozen=True)
class _Draft:
    """The numbers of one hypothesis on one task, before the correction for how much was asked."""

    task: TaskResponses
    learning: LearnerSpec
    part: Part
    values: dict[EpisodeKey, float]
    targets: dict[EpisodeKey, float]
    plants: list[float]
    reliability: dict[EpisodeKey, float]
    scale: RepairingTest
    test: RepairingTest
    has_outputs: bool

    @classmethod
    def of(cls, task: TaskResponses, learning: LearnerSpec, part: Part, count: int) -> _Draft:
        pairs = task.pairs(learning, IN_CONTEXT.label, part)
        orders = [task.pairs(again, IN_CONTEXT.label, part) for again in task.again("reorder")]
        reliability = {
            episode: float(np.tanh(np.mean([fisher([own[episode].value])[0] for own in orders if episode in own])))
            for episode in pairs
            if any(episode in own for own in orders)
        }
        own_plant = task.pairs(learning, plant_name(learning.label), part)
        plants = {episode: pair.plain for episode, pair in own_plant.items()}
        has_outputs = bool(task.pairs(learning, IN_CONTEXT.label, "outputs"))
        targets = {}
        for episode, number in reliability.items():
            ceiling = math.sqrt(max(0.0, number))
            if plants:
                targets[episode] = plants.get(episode, math.nan) * ceiling
            elif not has_outputs:
                targets[episode] = ceiling
        return cls(
            task,
            learning,
            part,
            {episode: pair.value for episode, pair in pairs.items()},
            targets,
            list(plants.values()),
            reliability,
            repairing_test([pair for own in orders for pair in own.values()], count=count),
            repairing_test(list(pairs.values()), count=count),
            has_outputs,
        )

    @property
    def label(self) -> str:
        twins = [other for other in self.task.hypotheses if other.label == self.learning.label]
        return self.learning.label if len(twins) < 2 else f"{self.learning.label} lr={self.learning.lr:g}"

    @property
    def family(self) -> str:
        cell = next(iter(self.task.cells[self.learning].values()))
        return cell.family or self.learning.name

    def by_seed(self, values: Mapping[EpisodeKey, float]) -> dict[int, float]:
        """One number a seed: orders and draws of weights of one seed are averaged."""
        found: dict[int, list[float]] = {}
        for (seed, _, _), value in values.items():
            if math.isfinite(value):
                found.setdefault(seed, []).append(value)
        return {seed: float(np.tanh(fisher(own).mean())) for seed, own in sorted(found.items())}

    def answer(self, p_holm: float, beside: Sequence[_Draft]) -> ResponseAnswer:
        values, targets = self.by_seed(self.values), self.by_seed(self.targets)
        seeds = list(values)
        decision = self._before(values) or decide(
            list(values.values()),
            [targets.get(seed, math.nan) for seed in seeds],
            p_holm,
            self.test.z,
            len(beside),
            self._rivals(seeds, beside),
        )
        task = self.task
        places = [task.pairs(one, IN_CONTEXT.label, self.part) for one in task.again("places")]
        copied = [pair.plain for own in places for pair in own.values()]
        agreement = [
            float(
                weighted(
                    np.array([p.copying.agreement for p in pair.parts if p.copying]),
                    [p.weight for p in pair.parts if p.copying],
                )
            )
            for pair in task.pairs(self.learning, IN_CONTEXT.label, self.part).values()
            if any(p.copying for p in pair.parts)
        ]
        return ResponseAnswer(
            task=task.task,
            learner=self.label,
            learning=self.learning,
            family=self.family,
            where=NAMES[self.part],
            answer=decision.word,
            value=OverSeeds.of(list(values.values())),
            target=finite_mean(list(targets.values())),
            targets=tuple(targets.values()),
            plant=OverSeeds.of(self.plants).mean,
            reliability=OverSeeds.of(list(self.by_seed(self.reliability).values())).mean,
            places=OverSeeds.of(copied).mean,
            copying=finite_mean(agreement),
            learned=task.share(IN_CONTEXT, "learned_share"),
            p=self.test.p,
            p_holm=p_holm,
            band=self.test.band,
            why=decision.why,
            seeds_needed=decision.seeds_needed,
        )

    def _before(self, values: Mapping[int, float]) -> Decision | None:
        """The answers that need no comparison: labels ignored, labels copied, nothing to be found here."""
        task, name = self.task, plant_name(self.learning.label)
        learned = task.share(IN_CONTEXT, "learned_share")
        if learned < IGNORED:
            return Decision("labels ignored", f"of what the context does, {learned:.1%} depends on the labels")
        if math.isnan(learned):
            return Decision("cannot tell", "in-context learning changes nothing, or its share was not measured")
        if len(values) < SEEDS:
            return Decision("cannot tell", f"{len(values)} seed{'s' * (len(values) != 1)} cannot decide", SEEDS)
        if not self.reliability:
            return Decision("cannot tell", "in-context learning was not read in another order")
        if not self.scale.p < 0.05:
            return Decision("labels copied", "with the same pairs in another order, the model responds differently")
        own = task.share(self.learning, "learned_share")
        if own < FLOOR:
            return Decision("cannot tell", f"of what the learner changes, {own:.1%} depends on the labels")
        if self.has_outputs and not self.plants:
            return Decision("cannot tell", "what it would be if it were this learner was not measured")
        if self.plants:
            found = OverSeeds.of(self.plants).mean
            if not found >= FOUND:
                return Decision(
                    "cannot tell",
                    f"planted in the model, it is not found again: {short(found)}, {short(FOUND)} is asked",
                )
            if task.share(self.learning, "learned_share", name) < FLOOR:
                return Decision("cannot tell", "planted in the model, it hardly responds to the labels")
        return None

    def _rivals(self, seeds: Sequence[int], beside: Sequence[_Draft]) -> dict[str, list[float]]:
        found = {}
        for other in beside:
            if other.task is self.task and other.family != self.family:
                own = other.by_seed(other.values)
                found[other.label] = [own.get(seed, math.nan) for seed in seeds]
        return found


def _confusion(tasks: Iterable[TaskResponses]) -> Iterable[tuple[str, str, str, str, float]]:
    """Every hypothesis beside every plant."""
    for task in tasks:
        for learning in task.hypotheses:
            names = {
                name for cell in task.cells[learning].values() for name in cell.references if name != IN_CONTEXT.label
            }
            for name in sorted(names):
                for part in PARTS:
                    values = [pair.plain for pair in task.pairs(learning, name, part).values()]
                    if values:
                        yield task.task, name, learning.label, NAMES[part], OverSeeds.of(values).mean


def _ceilings(tasks: Iterable[TaskResponses]) -> Iterable[ResponseCeiling]:
    for task in tasks:
        for learning in task.ceilings:
            for part in PARTS:
                if own := task.pairs(learning, IN_CONTEXT.label, part):
                    values = OverSeeds.of([pair.value for pair in own.values()])
                    yield ResponseCeiling(task.task, learning.label, learning, NAMES[part], values)


def _ranking(task: TaskResponses) -> dict[str, OverSeeds]:
    values = {
        learning.label: [pair.value for pair in task.pairs(learning, IN_CONTEXT.label, "answers").values()]
        for learning in task.hypotheses
    }
    return dict(sorted(simultaneous(values).items(), key=lambda item: -item[1].mean))


def plain(value: Any) -> Any:
    """Plain data for JSON: what is not finite is null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def counted(answers: Iterable[ResponseAnswer]) -> Counter[str]:
    return Counter(answer.answer for answer in answers)
