"""Dots with intervals, a row a task: the chart for everything that has one number a task and learner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualscope.report.charts.chart import Panel, plain, short, whiskers, with_interval
from dualscope.report.charts.palette import OTHERS, PUBLISHED
from dualscope.report.published import publications
from dualscope.report.subject import Subject
from dualscope.report.table import Number

NEAR_THE_EDGE = 0.8
"""From this part of the axis on, what stands above a mark ends there, so that no letter leaves the chart."""


@dataclass(frozen=True)
class Series:
    """A name, and a value with its interval for some of the tasks."""

    name: str
    colour: str
    symbol: str
    rows: dict[str, Number] = field(default_factory=dict)
    """By task."""
    beside: dict[str, str] = field(default_factory=dict)
    """By task, what stands above the mark."""
    bars: bool = True
    """Whether its intervals are drawn; the table has them anyway."""
    kind: str = ""
    """What a legend calls all series that look like this one."""

    def name_beside(self, tasks: Sequence[str], middle: float) -> dict[str, Any]:
        """The name beside the first task's mark, in the mark's colour: on the side where there is more room."""
        task = next(task for task in tasks if task in self.rows)
        number = self.rows[task]
        ends = [end for end in (number.value, number.low, number.high) if end is not None and end == end]
        left = (number.value or 0.0) > middle
        return {
            "type": "scatter",
            "mode": "text",
            "orientation": "h",
            "name": "",
            "x": [short(min(ends) if left else max(ends))],
            "y": [plain(task)],
            "ids": [plain(task)],
            "text": [f"{plain(self.name)}   " if left else f"   {plain(self.name)}"],
            "textposition": "middle left" if left else "middle right",
            "textfont": {"color": self.colour, "size": 11},
            "offsetgroup": self.name,
            "cliponaxis": False,
            "hoverinfo": "skip",
        }

    def trace(self, tasks: Sequence[str], span: tuple[float, float]) -> dict[str, Any]:
        here = [task for task in tasks if task in self.rows]
        values = [short(self.rows[task].value) for task in here]
        ends = [self.rows[task].low for task in here], [self.rows[task].high for task in here]
        names = [plain(task) for task in here]
        found = {
            **marks(self.name, values, names, self.symbol, self.colour),
            "offsetgroup": self.name,
            "ids": names,
            "customdata": with_interval(values, *ends),
            "hovertemplate": "%{y}: %{customdata}<extra>" + plain(self.name) + "</extra>",
        }
        if self.kind:
            found["meta"] = self.kind
        if self.bars:
            found["error_x"] = {**whiskers(values, *ends), "color": self.colour}
        if self.beside:
            font = {"color": self.colour, "size": 11}
            text = [plain(self.beside.get(task, "")) for task in here]
            edge = span[0] + NEAR_THE_EDGE * (span[1] - span[0])
            sides = ["top left" if (value or 0.0) > edge else "top center" for value in values]
            found |= {"mode": "markers+text", "text": text, "textposition": sides, "textfont": font}
            found["cliponaxis"] = False
        return found


def marks(
    name: str,
    x: Sequence[float | None],
    y: Sequence[Any],
    symbol: str,
    shade: str,
    size: int = 9,
    line: float = 1.6,
    said: str = "%{y}: %{x:.3f}",
) -> dict[str, Any]:
    """Marks of one series; on rows, their names are ready for a plot. ``said`` is shown where one is pointed at."""
    return {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "name": plain(name),
        "x": list(x),
        "y": list(y),
        "marker": {"color": shade, "symbol": symbol, "size": size, "line": {"width": line, "color": shade}},
        "hovertemplate": f"{said}<extra>{plain(name)}</extra>",
    }


def series_of(
    subject: Subject,
    metric: str,
    learners: Iterable[str],
    variants: Iterable[str] = ("trained",),
    references: Iterable[str | None] | None = None,
) -> list[Series]:
    """One for each learner and variant that has the metric on some task."""
    found = []
    wanted = {} if references is None else {"references": tuple(references)}
    for learner in learners:
        for variant in variants:
            rows = {task: subject.get(task, learner, metric, variant, **wanted) for task in subject.tasks}
            kept = {
                task: Number.of(row) for task, row in rows.items() if row is not None and math.isfinite(row["value"])
            }
            if kept:
                name = learner if variant == "trained" else f"{learner}, {variant}"
                symbol = subject.palette.symbol(learner, variant)
                found.append(Series(name, subject.colour(learner), symbol, kept))
    return found


def published_of(subject: Subject, metric: str, learners: Iterable[str]) -> list[Series]:
    """The papers' figures for the subject's tasks; the more recent one where two papers have it."""
    known, found = publications(), []
    for index, learner in enumerate(learners):
        figures = {task: known.find(task, metric, learner) for task in subject.tasks}
        rows = {task: Number(some[-1].value) for task, some in figures.items() if some}
        if rows:
            symbol = OTHERS[index % len(OTHERS)]
            found.append(Series(f"{learner}: {known.label}", PUBLISHED, symbol, rows))
    return found


def dots(
    series: Sequence[Series],
    tasks: Sequence[str],
    axis: str,
    title: str = "",
    span: tuple[float, float] | None = None,
    zero: bool = True,
    named: bool = False,
    together: bool = False,
) -> Panel:
    """A row a task; the dots of a task stand one under the other, or ``together`` on one line.

    ``named``: each series is named beside its first dot.
    """
    lines = 1 if together else max(1, len(series))
    layout: dict[str, Any] = {
        **({} if together else {"scattermode": "group", "scattergap": 0.25}),
        "xaxis": {"title": {"text": axis}, "zeroline": zero},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": [plain(t) for t in reversed(tasks)]},
    }
    if span:
        layout["xaxis"]["range"] = list(span)
    if any(one.beside for one in series):
        layout["yaxis"]["range"] = [-0.5, len(tasks) - 0.3]  # room for what stands above the first row
    height = 76 + len(tasks) * max(44, 13 * lines)
    # plotly puts the first of a group lowest; people read from the top
    reach = span or (0.0, 1.0)
    traces = [s.trace(tasks, reach) for s in reversed(series)]
    traces += [s.name_beside(tasks, sum(reach) / 2) for s in reversed(series) if s.rows] if named else []
    return Panel(traces, layout, title, height, by_task=True)


def panels_of(
    groups: Sequence[Sequence[Series]],
    subjects: Sequence[Subject],
    axis: str,
    floor: float | None = 0.0,
    zero: bool = True,
    named: bool = False,
) -> tuple[Panel, ...]:
    """A panel a subject that has any series, all with one range; titled where there are several subjects."""
    span = span_of(groups, floor)
    return tuple(
        dots(series, subject.tasks, axis, subject.name if len(subjects) > 1 else "", span, zero, named)
        for series, subject in zip(groups, subjects, strict=True)
        if series
    )


def span_of(groups: Iterable[Sequence[Series]], floor: float | None = None) -> tuple[float, float] | None:
    """One range for charts that are looked at side by side."""
    ends = [
        end
        for series in groups
        for one in series
        for number in one.rows.values()
        for end in (number.value, number.low, number.high)
        if end is not None and end == end and abs(end) != float("inf")
    ]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    if floor is not None:
        low = min(low, floor)
    pad = 0.04 * (high - low or 1.0)
    return low - pad, high + pad
