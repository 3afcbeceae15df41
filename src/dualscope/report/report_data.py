"""All that a report is made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from dualscope.report.charts.curves import Key, Line, layer_lines
from dualscope.report.reported_run import ReportedRun
from dualscope.report.subject import Subject, subjects


class Data:
    """The runs of a report, and their models."""

    def __init__(self, places: Sequence[str | Path]) -> None:
        self.sources = [ReportedRun(place, name) for place, name in zip(places, _names(places), strict=True)]
        self._lines: dict[int, dict[Key, Line]] = {}

    @cached_property
    def subjects(self) -> list[Subject]:
        return subjects(self.sources)

    def lines(self, subject: Subject) -> dict[Key, Line]:
        """Values per layer; read once a subject."""
        found = self._lines.get(id(subject))
        if found is None:
            found = self._lines[id(subject)] = layer_lines(subject)
        return found

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for subject in self.subjects for task in subject.tasks))

    def title(self, subject: Subject, name: str) -> str:
        """A panel's: with its model, where there are several."""
        return f"{name} · {subject.name}" if self.side_by_side else name

    @property
    def side_by_side(self) -> bool:
        return len(self.subjects) > 1


def _names(places: Sequence[str | Path]) -> list[str]:
    """The folders' own names; with as much of their paths as tells them apart.

    >>> _names(["runs/a", "runs/b"]), _names(["x/run", "y/run"]), _names(["run", "run"])
    (['a', 'b'], ['x/run', 'y/run'], ['run', 'run (2)'])
    """
    parts = [[p for p in str(place).split("/") if p not in ("", ".")] or ["run"] for place in places]
    deepest = max((len(p) for p in parts), default=1)
    names: list[str] = []
    for depth in range(1, deepest + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({names[: i + 1].count(name)})" if name in names[:i] else name for i, name in enumerate(names)]
