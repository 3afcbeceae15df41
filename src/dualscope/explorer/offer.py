"""What the page may choose from: the models, tasks and learners that were given at the start, and no others. And
what it knows when it opens: a first state with a draw of examples, and examples from a table that a person pastes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError, suggest
from dualscope.core.spec import LearnerSpec
from dualscope.explorer import state as caps
from dualscope.findings.response_words import MOVES
from dualscope.report.charts.palette import colour
from dualscope.tasks.catalog import catalog_names
from dualscope.tasks.episode import Episode
from dualscope.tasks.mapping import Example, to_examples
from dualscope.tasks.sources import separated
from dualscope.tasks.task import Task
from dualscope.tasks.task_config import TaskConfig

SHOTS = 8
QUERIES = 3
RATE = 0.1  # where no model card records one
AGAINST = "move against in-context learning's"  # a screen shows it; a verdict has no such word


def start_of(offer: Offer) -> dict[str, Any]:
    return {
        "models": list(offer.models),
        "tasks": [
            {"name": name, "labels": list(task.labels), "template": task.template} for name, task in offer.tasks.items()
        ],
        "learners": offer.learners(),
        "most": {
            "text": caps.MOST_TEXT,
            "demonstrations": caps.MOST_DEMONSTRATIONS,
            "queries": caps.MOST_QUERIES,
            "labels": caps.MOST_LABELS,
        },
        "moves": {**MOVES, "opposite": AGAINST},
        "state": first_state(offer),
    }


def first_state(offer: Offer) -> dict[str, Any]:
    """The first task's own draw, so that the first screen shows something that learns."""
    task = next(iter(offer.tasks.values()))
    known = {learner["name"] for learner in offer.learners()}
    return {
        "version": 1,
        "model": offer.models[0],
        **drawn(task, SHOTS, QUERIES, seed=0),
        "learners": [name for name in FIRST if name in known],
        "focus": FIRST[0],
        "rate": recorded(offer.models[0], task) or RATE,
        "steps": None,
        "seed": 0,
        "view": {"query": 0, "layer": None, "head": None},
    }


def drawn(task: Task, shots: int, queries: int, seed: int) -> dict[str, Any]:
    """A draw from a task, as a state has it."""
    shots = min(shots, len(task.train) - 1) or 1
    episode = Episode.draw(task, shots=shots, queries=queries, seed=seed)
    return {
        "task": task.name,
        "template": task.template,
        "labels": list(task.labels),
        "separator": task.separator,
        "demonstrations": [typed(example) for example in episode.demonstrations],
        "queries": [typed(example) for example in episode.queries],
    }


def typed(example: Example) -> dict[str, Any]:
    return {"fields": {name: text[: caps.MOST_TEXT] for name, text in example.fields.items()}, "label": example.label}


def recorded(model: str, task: Task) -> float | None:
    """The rate that the model's card has for a task."""
    from dualscope.studies.resolve import recorded_rates

    return recorded_rates([model], [task.name]).get((model, task.name))


PLACE = Path("what was pasted")  # what an error calls it


def pasted(text: str, template: str, labels: list[str]) -> list[dict[str, Any]]:
    """Rows of pasted CSV or TSV as examples.

    >>> pasted("text,label\\na fine film,good", "{text} It was", ["bad", "good"])
    [{'fields': {'text': 'a fine film'}, 'label': 1}]
    >>> pasted("a fine film\\tgood", "{text} It was", ["bad", "good"])[0]["label"]
    1
    """
    listed = {"demonstrations": [{"x": "x"}], "queries": [{"x": "x"}]}
    config = validated(TaskConfig, {"name": "pasted", "template": template, "labels": labels, **listed}, "the task")
    columns = [*config.field_names, *config.label]
    first = next((line for line in text.splitlines() if line.strip()), "")
    mark = next((mark for mark in "\t;," if first.count(mark) >= len(columns) - 1), ",")
    if not {column.strip().strip('"') for column in first.split(mark)} >= set(columns):
        text = mark.join(columns) + "\n" + text  # no header: the template's fields, then the label
    rows = list(separated(PLACE, io.StringIO(text, newline=""), mark))
    if not rows:
        raise InputError(f"{PLACE}: no line of {', '.join(columns)} was found")
    return [typed(example) for example in to_examples(rows, config, "pasted", str(PLACE))]


FIRST = ("gd", "lcgd", "task-vector")  # shown at first, of those that are registered
EMBEDDED = "embedded"
ENGLISH = Path(__file__).parent / "english" / "english-reviews.yaml"
"""Film reviews for models that read English; the embedded one does not."""


@dataclass(frozen=True)
class Offer:
    """Nothing that is not here can be named by a request: no path, no other model."""

    models: tuple[str, ...] = (EMBEDDED,)
    tasks: dict[str, Task] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    """What each task was asked for as: a name of the catalog, or a path."""
    data: Path | None = None
    plugins: tuple[str, ...] = ()
    device: str = "auto"
    offline: bool = False

    @classmethod
    def of(
        cls,
        models: Sequence[str] = (EMBEDDED,),
        tasks: Sequence[str] = (),
        data: Path | None = None,
        plugins: Sequence[str] = (),
        device: str = "auto",
        offline: bool = False,
    ) -> Offer:
        """Without tasks: those of ``data``, or the embedded ones, which need no download.

        For a model that reads English film reviews come first, and those that were made for the embedded model follow.
        """
        from dualscope.studies.plugins import load_plugins

        load_plugins(plugins)
        if data is not None and not data.is_dir():
            raise InputError(f"--data {data}: no such folder")
        loaded: dict[str, Task] = {}
        given: dict[str, str] = {}
        for asked in tasks or _by_themselves(data, english=set(models) != {EMBEDDED}):
            task = Task.load(asked, data=data, offline=offline)
            if task.name in loaded:
                raise InputError(f"--task: two tasks are called '{task.name}'; give one of them another name")
            loaded[task.name], given[task.name] = task, str(asked)
        return cls(tuple(dict.fromkeys(models)), loaded, given, data, tuple(plugins), device, offline)

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            raise InputError(f"task '{name}' was not given at the start: {suggest(name, self.tasks)}")
        return self.tasks[name]

    def check_model(self, name: str) -> str:
        if name not in self.models:
            raise InputError(f"model '{name}' was not given at the start: {suggest(name, self.models)}")
        return name

    def check_learners(self, names: Sequence[str]) -> None:
        known = [learner["name"] for learner in self.learners()]
        for name in names:
            if name not in known:
                raise InputError(f"no learner '{name}' can be shown: {suggest(name, known)}")

    def learners(self) -> list[dict[str, Any]]:
        """Every registered learner that can be shown: its name, role, and what `list learners` says of it."""
        from dualscope.learners import LEARNERS

        return [
            {
                "name": name,
                "role": LEARNERS[name].role,
                "about": (LEARNERS[name].__doc__ or "").strip().partition("\n")[0],
                "rate": LEARNERS[name].needs_lr,
                "colour": colour(LearnerSpec(name)).removeprefix("@"),
                "first": name in FIRST,
            }
            for name in LEARNERS
            if not LEARNERS[name]().needs_other(LEARNERS[name].options())
        ]


def _by_themselves(data: Path | None, english: bool) -> list[str]:
    if data is None:
        made = [task for task in map(Task.load, catalog_names()) if task.is_generated]
        names = [task.name for task in sorted(made, key=lambda task: len(task.labels))]  # the plainest first
        return [str(ENGLISH), *names] if english else names
    found = [name for name in catalog_names() if (data / name).is_dir()]
    if not found:
        raise InputError(f"--data {data}: has a folder for none of the catalog's tasks ({', '.join(catalog_names())})")
    return found
