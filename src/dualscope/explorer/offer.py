"""What the page may choose from: the models, tasks and learners that were given at the start, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError, suggest
from dualscope.core.spec import LearnerSpec
from dualscope.report.charts.palette import colour
from dualscope.tasks.catalog import catalog_names
from dualscope.tasks.task import Task

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
