"""A chart and its table from the same numbers: lines, dots, bars and matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dualscope.report.charts.chart import Chart, Panel, plain, short
from dualscope.report.charts.curves import Look, line_panel, line_span, line_trace, on_one_scale
from dualscope.report.charts.dots import Series, panels_of
from dualscope.report.charts.palette import DIVERGING
from dualscope.report.report_data import Data
from dualscope.report.subject import LabelledRow, Subject, where
from dualscope.report.table import Entry, Number, Table

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ChartPoint:
    """One number: its panel, its series, its place along the axis, and what stands before it in the table."""

    panel: str
    series: str
    look: Look
    x: Any
    number: Number
    row: tuple[Entry, ...]
    task: str | None = None
    said: str = ""
    """What is said before the number when it is pointed at; the place where it is empty."""


def lines(
    chart: Chart,
    points: Sequence[ChartPoint],
    columns: Sequence[str],
    axis: Mapping[str, Any],
    y_title: str = "",
    by_task: bool = True,
) -> Chart | None:
    """A panel for every title, a line for every series, all on one scale; ``by_task``: a panel is of one task."""
    panels = _grouped(points)
    if not panels:
        return None
    y: dict[str, Any] = {"zeroline": True, **({"title": {"text": y_title}} if y_title else {})}
    made = [
        Panel(
            [_line(name, own) for name, own in series.items()],
            {"xaxis": {"zeroline": False, **axis}, "yaxis": y},
            title,
            290,
            task=next(iter(series.values()))[0].task if by_task else None,
            named_at_ends=True,
        )
        for title, series in panels.items()
    ]
    table = Table.build(columns, ([*point.row, point.number] for point in points))
    return replace(chart, panels=tuple(on_one_scale(made) if by_task else made), table=table)


def _grouped(points: Sequence[ChartPoint]) -> dict[str, dict[str, list[ChartPoint]]]:
    """By panel, then by series."""
    found: dict[str, dict[str, list[ChartPoint]]] = {}
    for point in points:
        found.setdefault(point.panel, {}).setdefault(point.series, []).append(point)
    return found


def _line(name: str, points: Sequence[ChartPoint]) -> dict[str, Any]:
    reaches = [(p.number.value, p.number.low, p.number.high) for p in points]
    trace = line_trace(name, [point.x for point in points], reaches, points[0].look)
    if points[0].said:
        trace["text"] = [plain(point.said) for point in points]
        trace["hovertemplate"] = trace["hovertemplate"].replace("%{x}", "%{text}")
    return {**trace, "ids": [plain(point.task or "") for point in points]}


def dots(
    chart: Chart,
    data: Data,
    axis: str,
    series: Callable[[Subject], list[Series]],
    columns: Sequence[str],
    rows: Iterable[Sequence[Entry]],
    **settings: Any,
) -> Chart | None:
    """A panel a model, a row a task, a mark for every series; None where there is no series."""
    groups = [series(subject) for subject in data.subjects]
    if not any(groups):
        return None
    return replace(chart, panels=panels_of(groups, data.subjects, axis, **settings), table=Table.build(columns, rows))


def rows_of(data: Data, columns: Sequence[str], **wanted: Any) -> list[list[Entry]]:
    """Lines of a table from the rows of every model: its name, these columns, and the number."""

    def line(subject: Subject, row: LabelledRow) -> list[Entry]:
        return [subject.name, *(str(row.get(column) or "") for column in columns), Number.of(row)]

    return [line(subject, row) for subject in data.subjects for row in where(subject.rows, **wanted)]


def bars(
    chart: Chart,
    points: Sequence[ChartPoint],
    columns: Sequence[str],
    layout: Mapping[str, Any],
    height: Callable[[int], int],
    across: bool = False,
    hover: str = "",
) -> Chart | None:
    """A panel for every title, a bar for every point; without columns the chart keeps its own table."""
    panels = _grouped(points)
    if not panels:
        return None
    made = [
        Panel(
            [_bars(name, own, across, hover) for name, own in series.items()],
            dict(layout),
            title,
            height(max(map(len, series.values()))),
            task=None if across else next(iter(series.values()))[0].task,
            by_task=across,
        )
        for title, series in panels.items()
    ]
    table = Table.build(columns, ([*point.row, point.number] for point in points)) if columns else chart.table
    return replace(chart, panels=tuple(made), table=table)


def _bars(name: str, points: Sequence[ChartPoint], across: bool, hover: str) -> dict[str, Any]:
    look, places = points[0].look, [plain(str(point.x)) for point in points]
    values = [short(point.number.value) for point in points]
    pattern = {"shape": look.hatch, "bgcolor": look.colour, "fgcolor": "@paper", "solidity": 0.35}
    found: dict[str, Any] = {"type": "bar", "name": plain(name), "marker": {"color": look.colour}}
    if hover:
        found["hovertemplate"] = f"{hover}<extra>{plain(name)}</extra>"
    if not across:
        return {**found, "x": places, "y": values}
    marker = {"color": look.colour, "pattern": pattern}
    return {**found, "orientation": "h", "x": values, "y": places, "ids": places, "marker": marker}


def by_layer(
    chart: Chart,
    data: Data,
    drawn: Callable[[Subject, str], list[dict[str, Any]]],
    columns: Sequence[str],
    rows: Iterable[Sequence[Entry]],
) -> Chart | None:
    """A panel a model and task over the layers, all on one scale; None where nothing is drawn."""
    made = [
        (data.title(s, task), task, traces) for s in data.subjects for task in s.tasks if (traces := drawn(s, task))
    ]
    if not made:
        return None
    span = line_span(traces for *_, traces in made)
    panels = tuple(line_panel(traces, task, title, span) for title, task, traces in made)
    return replace(chart, panels=panels, table=Table.build(columns, rows))


@dataclass(frozen=True)
class Grid:
    """Numbers by row and column, and what stands before them in the table."""

    title: str
    values: np.ndarray
    row: tuple[Entry, ...]
    rows: Sequence[str]
    columns: Sequence[str]
    titles: tuple[str, str]
    """Of the rows and of the columns."""
    task: str | None = None


def matrix(chart: Chart, grids: Sequence[Grid], columns: Sequence[str], diverging: bool = False) -> Chart | None:
    """A heat map for every grid; the table has a line for every cell."""
    if not grids:
        return None
    panels = [
        heat_map(
            [[short(float(value)) for value in line] for line in grid.values],
            grid.rows,
            grid.columns,
            *grid.titles,
            grid.title,
            grid.task,
            diverging,
        )
        for grid in grids
    ]
    rows = [
        [*grid.row, row, column, Number(float(value))]
        for grid in grids
        for row, line in zip(grid.rows, grid.values, strict=True)
        for column, value in zip(grid.columns, line, strict=True)
    ]
    return replace(chart, panels=tuple(panels), table=Table.build(columns, rows, folded=True))


def heat_map(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
    title: str,
    task: str | None = None,
    diverging: bool = False,
) -> Panel:
    """Rows from below to above, each with its name. ``diverging``: 0 is paper, positive blue, negative orange."""
    finite = [value for line in values for value in line if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    ticks = [round(low + i * (high - low) / 4, 3) for i in range(5)]
    data = {
        **coloured(values, low, high, {tick: f"{tick:.3g}" for tick in ticks}, "%{y}, %{x}: %{z:.3f}"),
        **({"colorscale": DIVERGING} if diverging else {}),
        "x": list(columns),
        "y": [plain(name) for name in rows],
    }
    layout = {
        "xaxis": {"title": {"text": plain(column_title)}, "type": "category", "showgrid": False},
        "yaxis": {"title": {"text": plain(row_title)}, "type": "category", "showgrid": False},
    }
    return Panel([data], layout, title, 130 + 18 * len(rows), task=task)


def coloured(
    z: Sequence[Sequence[float | None]], low: float, high: float, ticks: Mapping[float, str], hover: str
) -> dict[str, Any]:
    """plotly's heat map from ``low`` to ``high``, with these ticks beside its colours."""
    return {
        "type": "heatmap",
        "z": z,
        "zmin": low,
        "zmax": high if high > low else low + 1,
        "colorscale": "Cividis",
        "colorbar": {
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
            "thickness": 10,
            "outlinewidth": 0,
            "len": 1,
        },
        "hovertemplate": f"{hover}<extra></extra>",
    }
