"""What a section is made of: text, tables, charts, and tabs of charts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from html import escape
from typing import Any

from dualscope.report.table import Badge, Number, Table

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
