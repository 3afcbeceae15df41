"""A table of the page: what stands behind a chart, and what is downloaded as CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

MINUS = "\N{MINUS SIGN}"
WIDE = 6
"""Columns; a wider table becomes a list of cards on a phone."""


def shown(value: float | None, digits: int = 3) -> str:
    """A number as people read it: a fixed number of decimals, a true minus sign, a dash where there is none.

    From a million on, only its size is shown.

    >>> shown(-0.12345), shown(None), shown(float("nan")), shown(-0.0001), shown(float("inf")), shown(27878643.4)
    ('−0.123', '–', '–', '0.000', '∞', '3e7')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if abs(value) >= 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e").replace("-", MINUS)
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


@dataclass(frozen=True)
class Number:
    """A number in a table, with its interval where it has one, and a mark."""

    value: float | None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    """What is said of it beside the number: `best`, `tie`."""
    digits: int = 3
    each: tuple[float, ...] = ()
    """Every seed's value."""

    @classmethod
    def of(cls, row: Mapping[str, Any] | None, mark: str = "", digits: int = 3) -> Number:
        """From a row of a summary, or an interval of a verdict; none where there is none."""
        if row is None:
            return cls(None)
        value, each = row.get("value", row.get("mean")), tuple(row.get("each", ()))
        return cls(value, row.get("low"), row.get("high"), mark, digits, each)

    @property
    def text(self) -> str:
        return shown(self.value, self.digits)

    @property
    def interval(self) -> str:
        if not (_finite(self.low) and _finite(self.high) and _finite(self.value)):
            return ""
        return f"[{shown(self.low, self.digits)}, {shown(self.high, self.digits)}]"

    @property
    def seeds(self) -> str:
        """Every seed's value, where there are several: a mean may be one seed's doing."""
        return ", ".join(shown(value, 2) for value in self.each) if len(self.each) > 1 else ""

    @property
    def raw(self) -> tuple[str, str, str]:
        """Value, low and high for the CSV: to nine digits, empty where there is none."""
        return tuple(f"{v:.9g}" if _finite(v) else "" for v in (self.value, self.low, self.high))  # type: ignore[return-value]


@dataclass(frozen=True)
class Badge:
    """A word that is an answer; `kind` chooses its sign and colour: yes, no, unclear, none."""

    text: str
    kind: str


Entry = str | Number | Badge


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    tasks: tuple[str | None, ...] = ()
    """The task of each row, by which the page's filter hides it."""
    title: str = ""
    folded: bool = False
    """Whether it waits behind its title."""

    @classmethod
    def build(
        cls,
        columns: Sequence[str],
        rows: Iterable[Sequence[Entry]],
        task: str | None = "task",
        title: str = "",
        folded: bool = False,
    ) -> Table:
        """`task` names the column that the filter looks at."""
        kept = tuple(tuple(row) for row in rows)
        at = columns.index(task) if task in columns else None
        tasks = tuple(None if at is None else str(row[at]) for row in kept)
        return cls(tuple(columns), kept, tasks, title, folded)

    def without(self, column: str) -> Table:
        """The table without a column that says the same in every row."""
        if column not in self.columns:
            return self
        at = self.columns.index(column)
        rows = tuple(row[:at] + row[at + 1 :] for row in self.rows)
        return replace(self, columns=self.columns[:at] + self.columns[at + 1 :], rows=rows)

    @property
    def wide(self) -> bool:
        """Whether it has more columns than a phone or a sheet of paper shows side by side."""
        return len(self.columns) > WIDE

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers: those stand to the right, and under one another."""
        return tuple(any(isinstance(row[i], Number) for row in self.rows) for i in range(len(self.columns)))

    @cached_property
    def intervals(self) -> tuple[bool, ...]:
        """Which columns have an interval somewhere."""
        return tuple(any(_has_interval(row[i]) for row in self.rows) for i in range(len(self.columns)))


def _has_interval(entry: Entry) -> bool:
    return isinstance(entry, Number) and bool(entry.interval)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
