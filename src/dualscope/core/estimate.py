"""A mean over seeds and queries, with an interval that is honest for few seeds.

Seeds are the sample: each is another draw of demonstrations (or of weights). The same queries recur in every seed, so
what a query is like is shared by all seeds, and no number of them averages it away. So the variance of the mean is
estimated as s2 / S + t2 / Q: s2 the variance of the S seeds' means, t2 that of the Q queries' means. Each of the
two has Student's quantile with degrees of freedom of its own, and an interval reaches
sqrt(t^2_{S-1} s2 / S + t^2_{Q-1} t2 / Q): where the queries are what varies, few seeds do not widen it. With three
seeds a bootstrap of seeds covers 75 % where it says 95 %; this covers what it says (the tests simulate it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from dualscope.core.statistics import Bounds, finite_means, ratio, share_of

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
    each: tuple[float, ...] = ()
    """Every seed's value, in the order of the seeds."""

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
    each: tuple[float, ...] = ()  # every seed's value

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """From [seeds, queries], NaN left out; of one seed only the queries vary, and the number of seeds says so."""
        values = np.atleast_2d(np.asarray(values, float))
        there = np.isfinite(values)
        kept = values[there.any(1)][:, there.any(0)]
        if kept.size == 0:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        seeds, queries = finite_means(kept, 1), finite_means(kept, 0)
        by_queries = _of_mean(queries)
        if len(seeds) > 1 and len(queries) > 1:
            # What a query and a seed have together is in the seeds' spread already: it is not counted twice.
            together = kept - seeds[:, None] - queries + seeds.mean()
            noise = np.nansum(together**2) / ((len(seeds) - 1) * (len(queries) - 1))
            by_queries = max(0.0, by_queries - float(noise) / kept.size)
        each = tuple(seeds.tolist())
        return cls(float(seeds.mean()), _of_mean(seeds), by_queries, len(seeds), len(queries), each)

    @classmethod
    def of_seeds(cls, means: Sequence[float] | np.ndarray, by_queries: float = 0.0) -> Estimate:
        """From one number a seed, and the variance that the queries give such a number."""
        kept = np.asarray(means, float)
        kept = kept[np.isfinite(kept)]
        if len(kept) == 0:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        return cls(float(kept.mean()), _of_mean(kept), by_queries, len(kept), 0, tuple(kept.tolist()))

    @classmethod
    def of_ratio(cls, left: np.ndarray, right: np.ndarray) -> Estimate:
        """mean(left) / mean(right) over what both have, linearised: a similarity as a share of its ceiling."""
        there = np.isfinite(left) & np.isfinite(right)
        left, right = np.where(there, left, np.nan), np.where(there, right, np.nan)
        above, below = cls.of(left), cls.of(right)
        share = float(ratio(above.mean, below.mean))
        around = cls.of((left - share * right) / below.mean)
        each = tuple(ratio(np.array(above.each), np.array(below.each)).tolist())
        return replace(around, mean=share, each=each)

    @classmethod
    def of_share(cls, left: np.ndarray, whole: np.ndarray) -> Estimate:
        """1 - mean(left) / mean(whole), linearised: an explained share, from what is left and all there is.

        A ratio of sums over the seeds, never a mean of ratios; none where there is nothing to explain.

        >>> Estimate.of_share(np.array([[0.1], [0.3]]), np.array([[0.4], [0.4]])).mean
        0.5
        """
        parts = _Share.of(left, whole)
        if parts is None:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        around = cls.of(parts.around)
        by_seed = share_of(finite_means(parts.left, 1), finite_means(parts.whole, 1))
        there = np.isfinite(parts.whole).any(1)
        return replace(around, mean=parts.value, each=tuple(by_seed[there].tolist()))

    @classmethod
    def of_shares_apart(cls, one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> Estimate:
        """How far two explained shares are apart, paired by seed and query: (left, whole) of each.

        A seed's value is its part in the difference: they are parts of the same sums, and their mean is it.
        """
        there = np.logical_and.reduce([np.isfinite(part) for part in (*one, *other)])
        kept = [[np.where(there, part, np.nan) for part in pair] for pair in (one, other)]
        first, second = (_Share.of(*pair) for pair in kept)
        if first is None or second is None:
            return cls(math.nan, math.nan, math.nan, 0, 0)
        around = cls.of(first.around - second.around)
        parts = cls.of(first.parts - second.parts)
        return replace(around, mean=first.value - second.value, each=parts.each)

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
            parts=tuple(known),
        )

    @property
    def se(self) -> float:
        return math.sqrt(self.by_seeds + self.by_queries)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the seeds' part."""
        return float(max(1, self.seeds - 1))

    @property
    def query_freedom(self) -> float:
        """Of the queries' part; where nothing is known of their number, that of a normal distribution."""
        return float(max(1, self.queries - 1)) if self.queries else math.inf

    def reach(self, alpha: float = 1 - LEVEL) -> float:
        """Half the width of the interval that misses the truth in a share ``alpha`` of studies.

        The seeds' part and the queries' part have degrees of freedom of their own: a handful of seeds says little of
        how far seeds vary, but the many queries say well how far queries do.
        """
        seeds, queries = (_student(freedom, alpha) for freedom in (self.freedom, self.query_freedom))
        return math.sqrt(
            (seeds**2 * self.by_seeds if self.by_seeds else 0.0)
            + (queries**2 * self.by_queries if self.by_queries else 0.0)
        )

    @property
    def interval(self) -> Interval:
        reach = self.reach() if math.isfinite(self.se) else math.nan
        return Interval(self.mean, self.mean - reach, self.mean + reach, self.seeds, self.queries, self.each)

    @property
    def p(self) -> float:
        """Two-sided: how often a mean of nothing is as far from 0 as this: the alpha whose interval just has 0."""
        return self.p_of(0.0)

    def p_of(self, truth: float) -> float:
        """The same where the truth is another number than 0."""
        apart = abs(self.mean - truth)
        if not math.isfinite(self.se):
            return math.nan
        if self.se == 0:
            return 1.0 if apart == 0 else 0.0
        ends = sorted(2 * float(_tail(f, apart / self.se)) for f in (self.freedom, self.query_freedom))
        if ends[1] - ends[0] <= 1e-12 * ends[1] or not self.by_seeds or not self.by_queries:
            part = self.freedom if self.by_seeds else self.query_freedom
            return 2 * float(_tail(part, apart / self.se))
        low, high = max(ends[0], 1e-300), min(ends[1], 1.0)
        if self.reach(low) <= apart:
            return low
        for _ in range(80):  # the reach falls as alpha grows
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.reach(middle) > apart else (low, middle)
            if high - low <= 1e-9 * high:
                break
        return high

    def seeds_needed(self, alpha: float = 1 - LEVEL) -> int | None:
        """How many seeds would show a difference of this size; None where no number up to `MOST_SEEDS` would."""
        if self.seeds < 2 or not math.isfinite(self.se):
            return None
        one = self.by_seeds * self.seeds
        for seeds in range(2, MOST_SEEDS + 1):
            then = Estimate(self.mean, one / seeds, self.by_queries, seeds, self.queries)
            if abs(self.mean) > then.reach(alpha):
                return seeds
        return None


@dataclass(frozen=True)
class PooledEstimate(Estimate):
    """A mean of estimates, which remembers them for its degrees of freedom."""

    parts: tuple[Estimate, ...] = ()

    @property
    def freedom(self) -> float:
        return _satterthwaite([(part.by_seeds, part.freedom) for part in self.parts])

    @property
    def query_freedom(self) -> float:
        return _satterthwaite([(part.by_queries, part.query_freedom) for part in self.parts])


@dataclass(frozen=True)
class _Share:
    """1 - mean(left) / mean(whole) with what each seed and query does to it."""

    left: np.ndarray  # [seeds, queries]
    whole: np.ndarray
    value: float
    all: float  # the mean of the whole

    @classmethod
    def of(cls, left: np.ndarray, whole: np.ndarray) -> _Share | None:
        there = np.isfinite(left) & np.isfinite(whole)
        left, whole = np.where(there, left, np.nan), np.where(there, whole, np.nan)
        means = [Estimate.of(part).mean for part in (left, whole)]
        value = float(share_of(*means))
        return cls(left, whole, value, means[1]) if math.isfinite(value) else None

    @property
    def parts(self) -> np.ndarray:
        """Their mean is the share."""
        found: np.ndarray = (self.whole - self.left) / self.all
        return found

    @property
    def around(self) -> np.ndarray:
        """What varies: the share moves by the mean of these, to first order."""
        found: np.ndarray = ((1 - self.value) * self.whole - self.left) / self.all
        return found


def _student(freedom: float, alpha: float) -> float:
    """What a share ``alpha`` of Student's distribution lies beyond, on either side."""
    return float(-ndtri(alpha / 2) if math.isinf(freedom) else -stdtrit(freedom, alpha / 2))


def _tail(freedom: float, t: float) -> float:
    return float(ndtr(-t) if math.isinf(freedom) else stdtr(freedom, -t))


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances, each with its own."""
    below = sum(variance**2 / freedom for variance, freedom in parts)
    return sum(variance for variance, _ in parts) ** 2 / below if below > 0 else math.inf


def _of_mean(values: np.ndarray) -> float:
    """The variance of the mean of these numbers; of one alone nothing is known, and nothing is added."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.0
