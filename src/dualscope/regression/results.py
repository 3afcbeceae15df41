"""What an experiment found: tidy rows, tables to print, and what was checked."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from dualscope.core.rows import ExperimentRow

Values = Tensor | Sequence[float]


@dataclass(frozen=True)
class ResultTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Check:
    """A claim that the theory makes about the numbers, and whether they bear it out."""

    claim: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Figure:
    """How a metric is drawn; what no figure speaks of is drawn as lines, or as points where there is no x."""

    metric: str
    title: str
    about: str = ""
    kind: Literal["lines", "heat map"] = "lines"  # heat map: a row a series, a column an x
    log_x: bool = False
    log_y: bool = False
    marks: str = ""  # a metric whose values, by series, are places on the x axis to mark
    span: tuple[float, float] | None = None  # of the y axis; what is outside leaves the figure
    reads: str = ""  # how to read it, where the claim is not that a line lies on another


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
    rows: list[ExperimentRow] = field(default_factory=list)
    tables: list[ResultTable] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)  # steps that were done, the machine, ...

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
        self.rows.append(
            ExperimentRow(
                experiment=self.experiment,
                panel=panel,
                series=series,
                metric=metric,
                x_name=x_name,
                x=x,
                value=float(value),
                low=low,
                high=high,
                seed=seed,
                n=n,
            )
        )

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

    def over_x(
        self,
        series: str,
        metric: str,
        values: Mapping[int, Values] | Mapping[float, Values],
        seeds: Sequence[int],
        x_name: str,
        panel: str = "",
    ) -> None:
        """The rows of a curve: at every x the values of all seeds."""
        for x, own in values.items():
            self.over_seeds(series, metric, own, seeds, panel=panel, x_name=x_name, x=x)

    def as_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Results":
        return cls(
            stored["experiment"],
            stored["rows"],
            [ResultTable(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in stored["tables"]],
            [Check(**check) for check in stored["checks"]],
            [Figure(**figure) for figure in stored["figures"]],
            stored["notes"],
        )

    @classmethod
    def joined(cls, parts: Sequence["Results"]) -> "Results":
        """Parts of one experiment (other seeds, other arms) as one: means and intervals are over all seeds there are.

        >>> first, second = Results("demo"), Results("demo")
        >>> one = first.over_seeds("trained", "loss", [1.0], seeds=[0])
        >>> other = second.over_seeds("trained", "loss", [3.0], seeds=[1])
        >>> [(row["seed"], row["value"], row["n"]) for row in Results.joined([first, second]).rows]
        [(0, 1.0, 1), (1, 3.0, 1), (None, 2.0, 2)]
        """
        whole = cls(parts[0].experiment)
        groups: dict[tuple[Any, ...], dict[int | None, ExperimentRow]] = {}
        trained_by: dict[tuple[Any, ...], int] = {}
        for number, part in enumerate(parts):
            for row in part.rows:
                key = (row["panel"], row["series"], row["metric"], row["x_name"], row["x"])
                # A training that two parts have may have been watched at other steps: all of its curves are of one.
                own_training = (
                    row["x_name"] != "step"
                    or row["seed"] is None
                    or trained_by.setdefault((row["panel"], row["series"], row["seed"]), number) == number
                )
                if own_training:
                    groups.setdefault(key, {}).setdefault(row["seed"], row)
        seeds: dict[tuple[Any, ...], set[int | None]] = {}
        for key, rows in groups.items():
            seeds.setdefault(key[:3], {None}).update(rows)
        for key, rows in groups.items():
            # A curve's mean is over all of its seeds, also where one was trained for longer.
            if key[3] == "step" and {None, *rows} != seeds[key[:3]]:
                rows.pop(None, None)
            own = [row for seed, row in sorted(rows.items(), key=lambda i: i[0] is None or i[0]) if seed is not None]
            whole.rows += own
            if own and None in rows:
                whole.rows.append(_over_seeds(rows[None], own))
            elif None in rows and rows[None]["x_name"] != "step":
                whole.rows.append(rows[None])
        for part in parts:
            whole.tables += part.tables
            whole.checks += [c for c in part.checks if c.claim not in {known.claim for known in whole.checks}]
            for figure in part.figures:
                whole._draw(figure)
            whole.notes |= part.notes
        return whole

    def values(self, series: str, metric: str) -> dict[int, float]:
        """seed -> value, of rows of one seed each."""
        return {
            row["seed"]: row["value"]
            for row in self.rows
            if row["series"] == series and row["metric"] == metric and row["seed"] is not None
        }

    def curves(self, series: str, metric: str, panel: str | None = None) -> dict[int, dict[float, float]]:
        """seed -> x -> value, in the order of x; of one panel, where several have that series."""
        found: dict[int, dict[float, float]] = {}
        for row in self.rows:
            seed, x = row["seed"], row["x"]
            if (row["series"], row["metric"]) != (series, metric) or panel not in (None, row["panel"]):
                continue
            if seed is not None and x is not None:
                found.setdefault(seed, {})[x] = row["value"]
        return {seed: dict(sorted(curve.items())) for seed, curve in found.items()}

    def summed_up(self, series: str, metric: str) -> tuple[float, float, float]:
        """Adds the row with the mean and interval of rows that were added seed by seed, and returns them."""
        own = [r for r in self.rows if r["series"] == series and r["metric"] == metric and r["seed"] is not None]
        mean, low, high = interval([row["value"] for row in own])
        first = own[0]
        where: dict[str, Any] = {"panel": first["panel"], "x_name": first["x_name"], "x": first["x"]}
        self.add(series, metric, mean, low=low, high=high, n=len(own), **where)
        return mean, low, high

    def check(self, claim: str, found: str, holds: bool) -> None:
        """A claim that was judged before is judged anew."""
        self.checks = [known for known in self.checks if known.claim != claim]
        self.checks.append(Check(claim, found, bool(holds)))

    def figure(self, metric: str, title: str, **options: Any) -> None:
        self._draw(Figure(metric, title, **options))

    def _draw(self, figure: Figure) -> None:
        """A figure shows a metric of all parts; where there was one of it already, the last is drawn."""
        self.figures = [known for known in self.figures if known.metric != figure.metric]
        self.figures.append(figure)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """One of the same title is written anew."""
        self.tables = [known for known in self.tables if known.title != title]
        self.tables.append(ResultTable(title, tuple(columns), tuple(tuple(row) for row in rows)))


def _over_seeds(row: ExperimentRow, own: Sequence[ExperimentRow]) -> ExperimentRow:
    """The row with the mean of these seeds' rows in place of its own."""
    mean, low, high = interval([one["value"] for one in own])
    return {**row, "value": mean, "low": low, "high": high, "n": len(own)}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % Student interval; with one value the interval is not known (NaN)."""
    from scipy.stats import t

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    reach = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - reach, mean + reach


def shown_mean(values: Values) -> str:
    """The mean over seeds with its interval, for a table."""
    return shown(*interval([float(value) for value in values]))


def shown(mean: float, low: float, high: float) -> str:
    """A mean with its interval, for a table.

    >>> shown(0.2, 0.15, 0.25), shown(0.2, float("nan"), float("nan"))
    ('0.2000 [0.1500, 0.2500]', '0.2000')
    """
    return f"{mean:.4f}" if low != low else f"{mean:.4f} [{low:.4f}, {high:.4f}]"
