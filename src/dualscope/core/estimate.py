"""A mean over seeds and queries, with an interval that is honest for few seeds.

Seeds are the sample: each is another draw of demonstrations (or of weights). The same queries recur in every seed, so
what a query is like is shared by all seeds, and no number of them averages it away. So the variance of the mean is
estimated as s2 / S + t2 / Q: s2 the variance of the S seeds' means, t2 that of the Q queries' means. Intervals and
p-values are Student's with S - 1 degrees of freedom: more would be right where the queries are what varies, but which
of the two it is cannot be told from three seeds, and Satterthwaite's estimate of it errs too often. With three seeds a
bootstrap of seeds covers 75 % where it says 95 %; this covers what it says (the tests simulate it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr, stdtrit

from dualscope.core.statistics import Bounds, ratio

LEVEL = 0.95
NORMAL = 1.96  # half the width of a normal 95 % interval, in standard errors: a cell's own, over its queries
MOST_SEEDS = 200


@dataclass(frozen=True)
class Interval:
    """A mean with its interval, and what it was taken over.

    >>> Interval(0.5, 0.4, 0.6, seeds=3, queries=200).label
    '95 % interval over 3 seeds x 200 queries'
    """

    mean: float
    low: float
    high: float
    seeds: int
    queries: int

    @property
    def label(self) -> str:
        seeds = f"{self.seeds} seed{'s' if self.seeds != 1 else ''}"
        return f"{LEVEL:.0%} interval over {seeds} x {self.queries} queries".replace("%", " %")

    @property
    def excludes_zero(self) -> bool:
        return bool(self.low > 0 or self.high < 0)

    def within(self, bounds: Bounds) -> Interval:
        """Cut where the number itself cannot go. It covers what it did, since the truth cannot be there either.

        >>> Interval(0.97, 0.89, 1.05, seeds=5, queries=40).within((0.0, 1.0)).high
        1.0
        """
        least, most = bounds
        return replace(self, low=max(self.low, least), high=min(self.high, most))


@dataclass(frozen=True)
class Estimate:
    """A mean, and how far the draws of seeds and of queries may have moved it.

    >>> found = Estimate.of(np.array([[0.1, 0.2], [0.3, 0.4], [0.2, 0.3]]))
    >>> round(found.mean, 2), found.seeds, found.queries, found.interval.low < 0 < found.interval.high
    (0.25, 3, 2, True)
    """

    mean: float
    by_seeds: float  # the variance of the mean that comes from the seeds
    by_queries: float  # the same from the queries
    seeds: int
    queries: int

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """From [seeds, queries], NaN left out; of one seed only the queries vary, and the number of seeds says so."""
        values = np.atleast_2d(np.asarray(values, float))
        there = np.isfinite(values)
        kept = values[there.any(1)][:, there.any(0)]
        if kept.size == 0:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        seeds, queries = _means(kept, 1), _means(kept, 0)
        by_queries = _of_mean(queries)
        if len(seeds) > 1 and len(queries) > 1:
            # What a query and a seed have together is in the seeds' spread already: it is not counted twice.
            together = kept - seeds[:, None] - queries + seeds.mean()
            noise = np.nansum(together**2) / ((len(seeds) - 1) * (len(queries) - 1))
            by_queries = max(0.0, by_queries - float(noise) / kept.size)
        return cls(float(seeds.mean()), _of_mean(seeds), by_queries, len(seeds), len(queries))

    @classmethod
    def of_seeds(
        cls, means: Sequence[float] | np.ndarray, by_queries: float = 0.0, queries: int = 0
    ) -> Estimate:
        """From one number a seed, and the variance that the queries give such a number."""
        kept = np.asarray(means, float)
        kept = kept[np.isfinite(kept)]
        if len(kept) == 0:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        return cls(float(kept.mean()), _of_mean(kept), by_queries, len(kept), queries)

    @classmethod
    def of_ratio(cls, left: np.ndarray, right: np.ndarray) -> Estimate:
        """mean(left) / mean(right) over what both have, linearised: a similarity as a share of its ceiling."""
        there = np.isfinite(left) & np.isfinite(right)
        left, right = np.where(there, left, np.nan), np.where(there, right, np.nan)
        above, below = cls.of(left), cls.of(right)
        share = float(ratio(above.mean, below.mean))
        around = cls.of((left - share * right) / below.mean)
        return cls(share, around.by_seeds, around.by_queries, around.seeds, around.queries)

    @classmethod
    def mean_of(cls, parts: Sequence[Estimate]) -> Estimate:
        """The mean of independent estimates that weigh the same: a mean over tasks."""
        known = [part for part in parts if math.isfinite(part.mean)]
        if not known:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        n = len(known)
        return PooledEstimate(
            sum(part.mean for part in known) / n,
            sum(part.by_seeds for part in known) / n**2,
            sum(part.by_queries for part in known) / n**2,
            max(part.seeds for part in known),
            max(part.queries for part in known),
            tuple(known),
        )

    @property
    def se(self) -> float:
        return math.sqrt(self.by_seeds + self.by_queries)

    @property
    def freedom(self) -> float:
        """Degrees of freedom: the seeds', or the queries' where there is one seed."""
        return float(self.seeds - 1 if self.seeds > 1 else max(1, self.queries - 1))

    @property
    def interval(self) -> Interval:
        if not math.isfinite(self.se):
            return Interval(self.mean, math.nan, math.nan, self.seeds, self.queries)
        reach = 0.0 if self.se == 0 else float(stdtrit(self.freedom, (1 + LEVEL) / 2)) * self.se
        return Interval(self.mean, self.mean - reach, self.mean + reach, self.seeds, self.queries)

    @property
    def p(self) -> float:
        """Two-sided: how often a mean of nothing is as far from 0 as this."""
        if not math.isfinite(self.se):
            return math.nan
        if self.se == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * stdtr(self.freedom, -abs(self.mean) / self.se))

    def seeds_needed(self, alpha: float = 1 - LEVEL) -> int | None:
        """How many seeds would show a difference of this size; None where no number up to `MOST_SEEDS` would."""
        if self.seeds < 2 or not math.isfinite(self.se):
            return None
        one = self.by_seeds * self.seeds
        for seeds in range(2, MOST_SEEDS + 1):
            if Estimate(self.mean, one / seeds, self.by_queries, seeds, self.queries).p < alpha:
                return seeds
        return None


@dataclass(frozen=True)
class PooledEstimate(Estimate):
    """A mean of estimates, which remembers them for its degrees of freedom."""

    parts: tuple[Estimate, ...] = ()

    @property
    def freedom(self) -> float:
        """By Satterthwaite: each part's variance with its own degrees of freedom."""
        below = sum(part.se**4 / part.freedom for part in self.parts)
        return sum(part.se**2 for part in self.parts) ** 2 / below if below > 0 else math.inf


def _means(values: np.ndarray, axis: int) -> np.ndarray:
    there = np.isfinite(values)
    return ratio(np.where(there, values, 0.0).sum(axis), there.sum(axis))


def _of_mean(values: np.ndarray) -> float:
    """The variance of the mean of these numbers; of one alone nothing is known, and nothing is added."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.0
