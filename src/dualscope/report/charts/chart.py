"""What a section is made of: text, tables, charts with one legend for all panels, and tabs of charts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from html import escape, unescape
from typing import Any

from dualscope.report.table import Badge, Number, Table

DASHES = {"dot": "2 3", "dash": "6 4", "dashdot": "6 3 2 3", "longdash": "10 4", "longdashdot": "9 3 2 3"}
SHAPES = {
    "circle": "M15 7a4 4 0 1 1-8 0a4 4 0 1 1 8 0z",
    "diamond": "M11 2l5 5l-5 5l-5-5z",
    "square": "M7 3h8v8h-8z",
    "triangle-up": "M11 2.5l5 8.5h-10z",
    "x": "M7.5 2l3.5 3.5l3.5-3.5l1.5 1.5l-3.5 3.5l3.5 3.5l-1.5 1.5l-3.5-3.5l-3.5 3.5l-1.5-1.5l3.5-3.5l-3.5-3.5z",
    "star": "M11 1.5l1.6 3.6l3.9.4l-2.9 2.6l.8 3.9l-3.4-2l-3.4 2l.8-3.9l-2.9-2.6l3.9-.4z",
    "hexagon": "M11 2.2l4.2 2.4v4.8l-4.2 2.4l-4.2-2.4v-4.8z",
    "cross": "M9.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "triangle-down": "M11 11.5l5-8.5h-10z",
    "pentagon": "M11 2l5 3.7l-1.9 5.9h-6.2l-1.9-5.9z",
    "triangle-left": "M6.5 7l8.5-5v10z",
    "triangle-right": "M15.5 7l-8.5-5v10z",
    "line-ns": "M11 2v10",
}


@dataclass(frozen=True)
class LegendKey:
    """A series in the legend: its name and how it is drawn."""

    name: str
    colour: str
    """A variable of the style sheet."""
    shape: str = ""
    hollow: bool = False
    line: bool = False
    dash: str = ""
    bar: bool = False
    hatched: bool = False
    area: bool = False


def legend(chart: Chart) -> list[LegendKey]:
    """Every named series once, in the order in which people should read them."""
    found: dict[str, LegendKey] = {}
    for panel in chart.panels:
        traces = reversed(panel.data) if panel.by_task and "scattermode" in panel.layout else panel.data
        for trace in traces:
            name = unescape(trace.get("meta") or trace.get("name", ""))
            if name and name not in found:
                found[name] = _key(name, trace)
    return list(found.values())


def _key(name: str, trace: dict[str, Any]) -> LegendKey:
    marker, line = trace.get("marker", {}), trace.get("line", {})
    colour = str(line.get("color") or marker.get("color") or "@grey").removeprefix("@")
    if trace["type"] == "bar":
        return LegendKey(name, colour, bar=True, hatched=bool(marker.get("pattern", {}).get("shape")))
    if trace.get("fill"):
        return LegendKey(name, colour, area=True)
    symbol = str(marker.get("symbol", "circle"))
    shape = SHAPES.get(symbol.removesuffix("-open"), SHAPES["circle"])
    if "lines" in trace["mode"]:
        has_marks = "markers" in trace["mode"]
        return LegendKey(
            name,
            colour,
            shape if has_marks else "",
            symbol.endswith("-open"),
            True,
            DASHES.get(line.get("dash", ""), ""),
        )
    return LegendKey(name, colour, shape, symbol.endswith("-open"))


NO_TABLE = Table((), ())


@dataclass(frozen=True)
class Panel:
    """One plot, as plotly's plain data. Colours are names that start with @: the page has them, light and dark."""

    data: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    height: int = 320
    task: str | None = None
    """The task it is about: the page's filter hides it with that task."""
    by_task: bool = False
    """Whether each point belongs to the task that its trace's `ids` name: the filter then takes points out."""
    named_at_ends: bool = False
    """Whether every line's name stands at its right end, in the line's colour."""


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    shows: str
    reads: str
    panels: tuple[Panel, ...] = ()
    table: Table = NO_TABLE
    metrics: tuple[str, ...] = ()
    """Names whose definitions the caption links to."""
    wide: bool = False
    """Whether its panels take the whole width, one under the other."""
    folded: bool = False
    """Whether it waits behind its title, on the screen and on paper."""
    named: bool = False
    """Whether the marks carry their names or the caption says what they are: there is no legend then."""


@dataclass(frozen=True)
class Tabs:
    """Charts of which one is shown at a time."""

    id: str
    label: str
    charts: tuple[tuple[str, Chart], ...]


@dataclass(frozen=True)
class Note:
    """A paragraph. `kind` is text, missing (something that was not measured) or warning."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Listing:
    """Text that came from data or settings, shown as it is: escaped, and folded away."""

    title: str
    lines: tuple[tuple[str, str], ...]
    """Each with a small head: a label, an id."""
    prose: bool = False
    """Whether they are sentences of ours, not text as it was found."""


@dataclass(frozen=True)
class Matrix:
    """Models and learners by tasks: what can be said of each, in a word, a number, and the control that decided."""

    tasks: tuple[str, ...]
    rows: tuple[tuple[str, str, str, tuple[tuple[Badge, Number, str, str] | None, ...]], ...]
    """A model, a learner's title and label, and its answer on every task: a word, a number, the control that decided,
    and what the number is of where that is not ``measure``."""
    measure: str


@dataclass(frozen=True)
class Judgement:
    """The verdict on one model: in words, in a table, with the rule that it follows."""

    subject: str
    setting: str
    said: tuple[tuple[str, str], ...]
    """A learner, and the sentence on it."""
    lines: tuple[tuple[str, str], ...]
    """A learner, and how often each answer was given."""
    reasons: tuple[str, ...]
    """Why something could not be tested."""
    remarks: tuple[str, ...]
    """What has to be known before the lines are believed."""
    table: Table
    details: tuple[tuple[str, tuple[str, ...]], ...]
    """Task and learner, and every sentence of that answer."""
    rule: str
    """Printed with the first verdict of a page; empty for the others, which follow the same one."""
    folded: bool = False
    """Whether it is of a setting that the charts do not show, and waits behind its title."""


@dataclass(frozen=True)
class Browser:
    """Queries to look through, with what each learner said of them: sets of one model, task and seed."""

    sets: tuple[dict[str, Any], ...]
    texts: tuple[tuple[str, ...], ...]
    """Lists of texts; a set names its own by its place here."""


Item = Chart | Tabs | Table | Note | Listing | Judgement | Matrix | Browser


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    items: tuple[Item, ...]
    about: str = ""
    parts: tuple[Section, ...] = ()
    """Sections that follow it, and stand under it in the navigation."""
    folded: bool = False
    """Whether it waits behind its title: what a first reading does not need."""
    unmeasured: str = ""
    """What is missing in these runs and how to measure it. A section of nothing else is not shown; the provenance
    says it."""

    def charts(self) -> list[Chart]:
        found: list[Chart] = []
        for item in self.items:
            if isinstance(item, Chart):
                found.append(item)
            elif isinstance(item, Tabs):
                found += [chart for _, chart in item.charts]
        return found + [chart for part in self.parts for chart in part.charts()]

    def without_column(self, name: str) -> Section:
        """The same section, a column taken out of every table."""

        def less(item: Item) -> Item:
            if isinstance(item, Table):
                return item.without(name)
            if isinstance(item, Chart):
                return replace(item, table=item.table.without(name))
            if isinstance(item, Tabs):
                charts = tuple((label, replace(c, table=c.table.without(name))) for label, c in item.charts)
                return replace(item, charts=charts)
            return item

        parts = tuple(part.without_column(name) for part in self.parts)
        return replace(self, items=tuple(map(less, self.items)), parts=parts)


def plain(text: str) -> str:
    """A name for a plot: plotly reads some HTML in labels, and names come from data."""
    return escape(text, quote=False)


def slug(name: str) -> str:
    """A name as part of an id or a file's name, with a short hash where something of it is lost.

    >>> slug("embedded-sst2"), slug("<i>a</i>")
    ('embedded-sst2', 'i-a-i-2c3ca1')
    """
    kept = re.sub(r"[^\w.-]+", "-", name).strip("-")
    return kept if kept == name else f"{kept}-{sha256(name.encode()).hexdigest()[:6]}".strip("-")


def short(value: float | None, digits: int = 5) -> float | None:
    """A number for a plot: few digits, because pages are read and not computed with; None where not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def with_interval(
    values: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None]
) -> list[str]:
    """What is said of each point when it is pointed at.

    >>> with_interval([0.3, 0.5], [0.21, None], [0.4, None])
    ['0.300 [0.210, 0.400]', '0.500']
    """
    numbers = (Number(*point) for point in zip(values, lows, highs, strict=True))
    return [f"{number.text} {number.interval}".strip() for number in numbers]


def whiskers(
    values: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None]
) -> dict[str, Any]:
    """plotly's error bars from the ends of intervals."""

    def reach(ends: Sequence[float | None], sign: float) -> list[float]:
        return [
            0.0 if v is None or e is None or not math.isfinite(e) else short(max(0.0, sign * (e - v))) or 0.0
            for v, e in zip(values, ends, strict=True)
        ]

    return {
        "type": "data",
        "symmetric": False,
        "array": reach(highs, 1),
        "arrayminus": reach(lows, -1),
        "thickness": 1.4,
        "width": 0,
    }
