"""What was tried while a setting is chosen, kept trial by trial: a choice that is interrupted goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dualscope.core.canonical import canonical

Row = dict[str, Any]


def _nobody(_rows: Mapping[str, Row]) -> None:
    pass


@dataclass
class Trials:
    """Rows by what was tried on which bench. ``keep`` hears of all of them after each new one.

    >>> trials = Trials()
    >>> trials.row(0, {"rate": 0.1}, lambda: {"accuracy": 0.5})
    {'accuracy': 0.5}
    >>> trials.row(0, {"rate": 0.1}, lambda: {"accuracy": 0.7})  # known: not tried again
    {'accuracy': 0.5}
    """

    rows: dict[str, Row] = field(default_factory=dict)
    keep: Callable[[Mapping[str, Row]], None] = _nobody

    def row(self, bench: int, settings: Mapping[str, Any], attempt: Callable[[], Row]) -> Row:
        """The row of these settings on the bench of this number: the known one, or that of an attempt now."""
        key = canonical([bench, dict(settings)])
        if key not in self.rows:
            self.rows[key] = attempt()
            self.keep(self.rows)
        return self.rows[key]
