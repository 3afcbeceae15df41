"""Values per layer over the seeds with their intervals, and the lines that show them, a panel a task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from dualscope.core.estimate import NORMAL, Estimate
from dualscope.core.statistics import ANYWHERE, Bounds
from dualscope.report.charts.chart import Panel, plain, short, whiskers, with_interval
from dualscope.report.charts.palette import DASHES, Palette
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number

Key = tuple[str, str, str, str, str | None]
"""task, variant, learner, metric, reference"""
Reach = tuple[float, float, float]
"""a value and the ends of its interval"""


@dataclass(frozen=True)
class Line:
    layers: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @property
    def points(self) -> list[tuple[int, float, float, float]]:
        """Layer, value and the ends of the interval."""
        return list(zip(self.layers, self.values, self.lows, self.highs, strict=True))

    @classmethod
    def over_seeds(cls, found: dict[int, dict[int, list[Reach]]], bounds: Bounds = ANYWHERE) -> Line:
        """By layer and seed; several cells of a seed (orders, draws of weights) are no further seeds."""
        layers = sorted(found)
        ends = [combine([mean(cells) for cells in found[layer].values()], bounds) for layer in layers]
        values, lows, highs = zip(*ends, strict=True) if ends else ((), (), ())
        return cls(tuple(layers), values, lows, highs)


def mean(cells: Sequence[Reach]) -> Reach:
    """Of cells that are not of different seeds: value by value and end by end."""
    value, low, high = (math.fsum(column) / len(cells) for column in zip(*cells, strict=True))
    return value, low, high


def combine(parts: Sequence[Reach], bounds: Bounds = ANYWHERE) -> Reach:
    """The mean over seeds of (value, low, high), with a 95 % interval that ends where the numbers do (``bounds``).

    The seeds' spread over the number of seeds, plus the variance within a seed (from its interval over queries), which
    is not divided: the same queries recur in every seed. One seed keeps its own interval.

    >>> combine([(0.5, 0.4, 0.7)])
    (0.5, 0.4, 0.7)
    >>> mean, low, high = combine([(0.4, 0.4, 0.4), (0.6, 0.6, 0.6)])
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.5, -0.771, 1.771)
    """
    there = [part for part in parts if not math.isnan(part[0])]
    if not there or any(math.isinf(part[0]) for part in there):  # a signal to noise of no noise at all
        return (there[0][0] if len(there) == 1 else math.inf if there else math.nan), math.nan, math.nan
    if len(there) == 1:
        return there[0]
    values, lows, highs = (np.array(column, float) for column in zip(*there, strict=True))
    within = ((highs - lows) / (2 * NORMAL)) ** 2
    within = within[np.isfinite(within)]
    found = Estimate.of_seeds(values, float(within.mean()) if len(within) else 0.0).interval.within(bounds)
    return found.mean, found.low, found.high


def layer_lines(subject: Subject) -> dict[Key, Line]:
    """Every metric that has layers, for the cells of the subject's setting."""
    from dualscope.metrics import bounds_of

    found: dict[Key, dict[int, dict[int, list[Reach]]]] = {}
    for name, cell in subject.cells.items():
        table = subject.source.table(name)
        kept = table.filter(pc.and_(pc.is_valid(table["layer"]), pc.is_null(table["step"])))
        columns = [kept[column].to_pylist() for column in ("metric", "reference", "layer", "value", "low", "high")]
        where = (cell.episode.task, cell.episode.model.variant, cell.learning.label)
        for metric, reference, layer, *numbers in zip(*columns, strict=True):
            value, low, high = (math.nan if n is None else n for n in numbers)
            line = found.setdefault((*where, metric, reference), {})
            line.setdefault(layer, {}).setdefault(cell.episode.seed, []).append((value, low, high))
    return {key: Line.over_seeds(layers, bounds_of(key[3])) for key, layers in found.items()}


BARS = ("trained",)
"""The variants whose intervals are drawn as error bars; those of the others are in the table."""


@dataclass(frozen=True)
class Look:
    """How a series is drawn."""

    colour: str
    symbol: str = "circle"
    dash: str = "solid"
    width: float = 2
    size: int = 6
    hatch: str = ""
    """Of bars: "/" for hatched ones."""


def line_trace(
    name: str,
    x: Sequence[Any],
    reaches: Iterable[Sequence[float | None]],
    look: Look,
    bars: bool = True,
    place: str = "%{x}: ",
) -> dict[str, Any]:
    """A line through values with the ends of their intervals; ``place`` is said before a value that is pointed at."""
    values, lows, highs = map(list, zip(*reaches, strict=True))
    shown = [short(value) for value in values]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": list(x),
        "y": shown,
        "line": {"color": look.colour, "dash": look.dash, "width": look.width},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": look.size},
        "customdata": with_interval(shown, lows, highs),
        "hovertemplate": place + "%{customdata}<extra>" + plain(name) + "</extra>",
    }
    if bars:
        trace["error_y"] = {**whiskers(shown, lows, highs), "color": look.colour, "thickness": 1}
    return trace


def curve(
    name: str, line: Line, colour: str, dash: str, bars: bool, shift: float = 0.0, symbol: str = "circle"
) -> dict[str, Any]:
    look = Look(colour, symbol, dash) if dash == "solid" else Look(colour, symbol, dash, 1.5, 4)
    reaches = zip(line.values, line.lows, line.highs, strict=True)
    return line_trace(name, [layer + shift for layer in line.layers], reaches, look, bars, "layer %{x:.0f}: ")


def curves(
    lines: Mapping[Key, Line],
    task: str,
    metric: str,
    learners: Sequence[str],
    variants: Sequence[str],
    palette: Palette,
    references: Iterable[str | None] = ("in-context", None, "zero-shot"),
) -> list[dict[str, Any]]:
    """The traces of one task; learners are moved a little apart, so that their bars do not hide one another."""
    found = []
    for variant in variants:
        for index, learner in enumerate(learners):
            line = pick(lines, task, variant, learner, metric, references)
            if line is not None:
                name = learner if variant == "trained" else f"{learner}, {variant}"
                shift = 0.06 * (index - (len(learners) - 1) / 2)
                shade, symbol = palette.colour(learner), palette.symbol(learner, variant)
                drawn = curve(name, line, shade, DASHES[variant], variant in BARS, round(shift, 3), symbol)
                found.append(drawn)
    return found


def band(name: str, line: Line, colour: str) -> dict[str, Any]:
    """The room between the ends of a line's intervals, as an area."""
    ends = list(zip(line.layers, line.lows, line.highs, line.values, strict=True))
    lows = [(layer, short(low if low == low else value)) for layer, low, _, value in ends]
    highs = [(layer, short(high if high == high else value)) for layer, _, high, value in ends]
    outline = [*highs, *reversed(lows)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": [layer for layer, _ in outline],
        "y": [value for _, value in outline],
        "fill": "toself",
        "opacity": 0.25,
        "fillcolor": colour,
        "line": {"color": colour, "width": 0},
        "hoverinfo": "skip",
    }


def pick(
    lines: Mapping[Key, Line],
    task: str,
    variant: str,
    learner: str,
    metric: str,
    references: Iterable[str | None] = ("in-context", None, "zero-shot"),
) -> Line | None:
    for reference in references:
        line = lines.get((task, variant, learner, metric, reference))
        if line is not None:
            return line
    return None


def line_panel(traces: list[dict[str, Any]], task: str, title: str, span: tuple[float, float] | None) -> Panel:
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "layer"}, "zeroline": False, "dtick": _tick(traces)},
        "yaxis": {"zeroline": True},
    }
    if span:
        layout["yaxis"]["range"] = list(span)
    return Panel(traces, layout, title, 280, task=task, named_at_ends=True)


def _tick(traces: list[dict[str, Any]]) -> int:
    last = max((max(trace["x"]) for trace in traces if trace["x"]), default=0)
    return 1 if last <= 12 else 2 if last <= 24 else 4


def line_span(groups: Iterable[list[dict[str, Any]]]) -> tuple[float, float] | None:
    """The range of all panels, so that they can be compared."""
    ends: list[float] = []
    for traces in groups:
        for trace in traces:
            bars = trace.get("error_y")
            for i, y in enumerate(trace["y"]):
                if y is not None:
                    up, down = (bars["array"][i], bars["arrayminus"][i]) if bars else (0.0, 0.0)
                    ends += [y + up, y - down]
    if not ends:
        return None
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    pad = 0.05 * (high - low or 1.0)
    return low - pad, high + pad


def on_one_scale(panels: Sequence[Panel]) -> list[Panel]:
    """Panels that are compared have one y axis."""
    span = line_span(list(panel.data) for panel in panels)
    if span is None:
        return list(panels)
    return [
        replace(panel, layout={**panel.layout, "yaxis": {**panel.layout["yaxis"], "range": list(span)}})
        for panel in panels
    ]


def line_rows(
    lines: Mapping[Key, Line],
    metric: str,
    learners: Sequence[str],
    variants: Sequence[str],
    tasks: Sequence[str],
    subject: str,
) -> list[list[Entry]]:
    """What stands behind the panels: subject, task, learner, variant, layer, value."""
    found: list[list[Entry]] = []
    for task in tasks:
        for learner in learners:
            for variant in variants:
                line = pick(lines, task, variant, learner, metric)
                if line is not None:
                    for layer, *ends in zip(line.layers, line.values, line.lows, line.highs, strict=True):
                        number = Number(value=ends[0], low=ends[1], high=ends[2])
                        found.append([subject, task, learner, variant, str(layer), number])
    return found
