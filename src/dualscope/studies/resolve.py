"""What a study's names mean: learners and their options, weights, data. Remembered, so that torch can stay away."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dualscope._version import __version__
from dualscope.choosing.halving import Rounds
from dualscope.core.canonical import canonical
from dualscope.core.config_file import check_head
from dualscope.core.errors import InputError
from dualscope.core.registry import ELSEWHERE, Description
from dualscope.core.spec import LearnerSpec
from dualscope.core.untrusted_files import reading, text_of
from dualscope.core.words import Control, Family, Role
from dualscope.models.loading.source import find
from dualscope.models.reading.footprint import TrainingDemand
from dualscope.studies.plugins import Apart, is_foreign, load_plugins, plugins_digest
from dualscope.studies.study import Study
from dualscope.tasks import Task

T = TypeVar("T")


@dataclass(frozen=True)
class LearnerFacts:
    """A learner by its own name, without a rate, and what a plan has to know of it."""

    learning: LearnerSpec
    role: Role
    needs_lr: bool
    needs_other: bool
    code: str
    """The hash of the plugins' code where a plugin defines the learner; else empty."""
    open: str | None = None
    """The learner's own options as JSON, where it leaves settings to be chosen on spare examples."""
    own_options: str = "{}"
    """The learner's own options as JSON, without its control's."""
    rounds: Rounds | None = None
    """How candidates for what is open are tried; None where the learner chooses in a way of its own."""
    training: TrainingDemand | None = None
    """How it trains the model, where it does."""
    family: Family | None = None
    can_be_planted: bool = False
    learns_draws: bool = False
    """Whether it learns from several draws of an intervention at once."""
    description: Description | None = None
    """What the learner says of itself: pages are made where a plugin's code is not."""
    refused: str = ""
    """Why the learner cannot be under its control, where it cannot."""


SAMPLE = 200  # training examples that tell how long a task's texts are


class Resolver:
    """Turns names into facts. Learners live in modules that import torch; what was learnt of them before is
    handed in as ``memory`` (kept in provenance.json) and they are asked only about what is new.
    """

    def __init__(
        self, study: Study, memory: Mapping[str, Any] | None = None, offline: bool = False, apart: Apart | None = None
    ) -> None:
        self.study, self.offline, self.apart = study, offline, apart
        self.memory: dict[str, Any] = dict(memory or {})
        self._tasks: dict[str, Task] = {}

    @cached_property
    def plugins(self) -> str:
        return plugins_digest(self.study.plugins)

    def learner(
        self, name: str, options: Mapping[str, Any] | None = None, control: Control | None = None
    ) -> LearnerFacts:
        key = canonical([__version__, self.plugins, name, options or {}, control])
        if key not in self.memory:
            self.memory[key] = self._ask(_ask_learner, name, options or {}, control)
        known = dict(self.memory[key])
        how, rounds = known.pop("training", None), known.pop("rounds", None)
        said = Description.from_facts(known.pop("description", None) or {"title": name})
        if known["code"]:
            ELSEWHERE[known["learning"]["name"]] = said
        return LearnerFacts(
            LearnerSpec(**known.pop("learning")),
            training=None if how is None else TrainingDemand(**how),
            rounds=None if rounds is None else Rounds.from_facts(rounds),
            description=said,
            **known,
        )

    def metrics(self) -> tuple[tuple[str, ...] | None, str]:
        """The metrics by name (None: the default ones), and the hash of the code where a plugin defines some."""
        if self.study.metrics is None and not self.plugins:
            return None, ""
        heads = ["heads"] if self.study.per_head else []
        key = canonical([__version__, self.plugins, "metrics", self.study.metrics, *heads])
        if key not in self.memory:
            self.memory[key] = self._ask(_ask_metrics)
        names, code = self.memory[key]
        return (None if names is None else tuple(names)), code

    def intervention(self, kind: str) -> tuple[str, str]:
        """An intervention by its own name, and the hash of the code where a plugin defines it."""
        key = canonical([__version__, self.plugins, "intervention", kind])
        if key not in self.memory:
            self.memory[key] = self._ask(_ask_intervention, kind)
        name, code = self.memory[key]
        return name, code

    def task(self, name: str) -> Task:
        if name not in self._tasks:
            self._tasks[name] = Task.load(name, data=self.study.data, offline=self.offline, chat=self.study.chat)
        return self._tasks[name]

    def _ask(self, question: Callable[..., T], *about: Any) -> T:
        """Ask the learners' and metrics' own modules: here, or where plugins are isolated in another process."""
        ask = self.apart.ask if self.apart is not None else _here
        return ask(question, self.study, self.plugins, *about)


def _here(question: Callable[..., T], *about: Any) -> T:
    return question(*about)


def _ask_learner(
    study: Study, digest: str, name: str, options: Mapping[str, Any], control: Control | None
) -> dict[str, Any]:
    from dualscope.learners import LEARNERS, Learner, identify, role_of
    from dualscope.learners.controls import needs_other, settings_of, unchanged
    from dualscope.learners.response_bench import cannot_be_planted

    load_plugins(study.plugins)
    learning = identify(name, options, control)
    kind = LEARNERS[learning.name]
    own, _ = settings_of(learning.name, learning.control, learning.settings)
    return asdict(
        LearnerFacts(
            learning=learning,
            role=role_of(learning),
            needs_lr=kind.needs_lr,
            needs_other=needs_other(learning),
            code=digest if digest and is_foreign(kind) else "",
            open=canonical(own.changed()) if kind().is_open(own) else None,
            own_options=canonical(own.changed()),
            rounds=kind().rounds(own) if kind.choose is Learner.choose else None,
            training=kind().training(own),
            family=kind.family,
            description=kind.description(),
            can_be_planted=not cannot_be_planted(learning),
            learns_draws=kind().learns_draws and control != "random-update",
            refused=unchanged(learning.name) if control == "random-update" and not kind.changes_model else "",
        )
    )


def _ask_intervention(study: Study, digest: str, kind: str) -> tuple[str, str]:
    from dualscope.learners.interventions import INTERVENTIONS

    load_plugins(study.plugins)
    name = INTERVENTIONS.canonical(kind)
    return name, digest if digest and is_foreign(INTERVENTIONS[name]) else ""


def _ask_metrics(study: Study, digest: str) -> tuple[tuple[str, ...] | None, str]:
    from dualscope.metrics import METRICS, expand

    load_plugins(study.plugins)
    foreign = {name for name in METRICS if is_foreign(METRICS[name].function)} if digest else set()
    if study.metrics is None:
        if not foreign:
            return None, ""
        names = sorted({*expand(None, study.per_head), *foreign})
    else:
        names = sorted(expand(study.metrics, study.per_head))
    return tuple(names), digest if foreign & set(names) else ""


def other_task(own: Task, tasks: Sequence[Task]) -> Task | None:
    """The task for a control that is taught another one: no label word in common, texts of about the same length.

    Whatever the order in which tasks are listed.
    """

    def words(task: Task) -> set[str]:
        return {label.strip().casefold() for label in task.labels}

    def length(task: Task) -> float:
        some = task.train[:SAMPLE]
        return sum(len(task.prompt(example)) for example in some) / max(1, len(some))

    apart = [task for task in tasks if task.name != own.name and not words(task) & words(own)]
    return min(apart, key=lambda task: (abs(length(task) - length(own)), task.name), default=None)


# Learning rates that a model's card records (``lr: recorded``), under ``rates:`` at the head of its README.md.


ADVICE = "mend the card, or give the rates with --lr"


def recorded_rates(models: Sequence[str], tasks: Sequence[str]) -> dict[tuple[str, str], float]:
    """The rate of each model and task whose card names one, under ``rates:`` at the head of its README.md."""
    found = {}
    for model in models:
        folder = find(model, offline=True).folder
        card = folder / "README.md" if folder is not None else None
        if card is None or not card.exists():
            continue
        rates = _rates(card)
        found.update({(model, task): _rate(rates[task], task, card) for task in tasks if task in rates})
    return found


def asks_for_recorded(study: Study) -> bool:
    """Whether a study takes any rates from the models' cards: else the cards are not read."""
    asked = [study.lr, *(task.lr for task in study.tasks), *(learner.lr for learner in study.learners)]
    return "recorded" in asked


def _rates(card: Path) -> dict[Any, Any]:
    from huggingface_hub import ModelCard

    text = text_of(card)
    if not text.lstrip().startswith("---"):
        return {}
    check_head(text, str(card))
    with reading(f"{card}: the fields at its head", ADVICE):
        rates = ModelCard(text, ignore_metadata_errors=True).data.to_dict().get("rates", {})
    if not isinstance(rates, dict):
        raise InputError(f"{card}: rates: expected `task: rate` lines, found {type(rates).__name__}; {ADVICE}")
    return rates


def _rate(value: object, task: str, card: Path) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise InputError(f"{card}: rates: {task}: expected a rate above 0, found {str(value)[:60]!r}; {ADVICE}")
