"""What an experiment found: tidy rows, tables to print, and what was checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

COLUMNS = ("experiment", "panel", "series", "metric", "x_name", "x", "value", "low", "high", "seed", "n")
Values = Tensor | Sequence[float]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Check:
    """A claim that the theory makes about the numbers, and whether they bear it out."""

    claim: str
    found: str
    holds: bool


@dataclass
class Results:
    """Rows of one experiment; ``low`` and ``high`` are a 95 % interval over seeds, and rows of one seed
    have none.

    >>> results = Results("demo")
    >>> mean, low, high = results.over_seeds("trained", "loss", [0.1, 0.2, 0.3], seeds=[0, 1, 2], x=100, x_name="step")
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.2, -0.048, 0.448)
    >>> [row["seed"] for row in results.rows]
    [0, 1, 2, None]
    """

    experiment: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def add(
        self,
        series: str,
        metric: str,
        value: float,
        *,
        panel: str = "",
        x_name: str = "",
        x: float | None = None,
        low: float | None = None,
        high: float | None = None,
        seed: int | None = None,
        n: int = 1,
    ) -> None:
        found = (self.experiment, panel, series, metric, x_name, x, float(value), low, high, seed, n)
        self.rows.append(dict(zip(COLUMNS, found, strict=True)))

    def over_seeds(
        self, series: str, metric: str, values: Values, seeds: Sequence[int], **where: Any
    ) -> tuple[float, float, float]:
        """One row a seed, and one with their mean and interval, which is returned."""
        numbers = [float(value) for value in values]
        for seed, value in zip(seeds, numbers, strict=True):
            self.add(series, metric, value, seed=seed, **where)
        mean, low, high = interval(numbers)
        self.add(series, metric, mean, low=low, high=high, n=len(numbers), **where)
        return mean, low, high

    def check(self, claim: str, found: str, holds: bool) -> None:
        self.checks.append(Check(claim, found, bool(holds)))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.tables.append(Table(title, tuple(columns), tuple(tuple(row) for row in rows)))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % Student interval; with one value the interval is not known (NaN)."""
    from scipy.stats import t

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    reach = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - reach, mean + reach


def shown(mean: float, low: float, high: float) -> str:
    """A mean with its interval, for a table.

    >>> shown(0.2, 0.15, 0.25), shown(0.2, float("nan"), float("nan"))
    ('0.2000 [0.1500, 0.2500]', '0.2000')
    """
    return f"{mean:.4f}" if low != low else f"{mean:.4f} [{low:.4f}, {high:.4f}]"
