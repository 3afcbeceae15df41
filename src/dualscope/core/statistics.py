"""Intervals, paired differences and p-values. numpy alone, vectorised, seeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 1000
SNR_THRESHOLD = (
    50.0  # below this signal to noise, rounding may turn a change by more than 0.02: the verdict's margin
)


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval, and what it was taken over.

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


def resample_counts(size: int, resamples: int = RESAMPLES, seed: int | np.random.Generator = 0) -> np.ndarray:
    """How often each of `size` things is drawn in each resample: [resamples, size]."""
    if size == 0:
        return np.zeros((resamples, 0))
    drawn = np.random.default_rng(seed).integers(0, size, (resamples, size))
    flat = drawn + np.arange(resamples)[:, None] * size
    return np.bincount(flat.ravel(), minlength=resamples * size).reshape(resamples, size).astype(float)


def quantiles(draws: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """The interval's ends along axis 0, NaN left out; NaN where nothing is left.

    >>> low, high = quantiles(np.array([0.0, 1.0, 2.0, np.nan]), level=0.5)
    >>> float(low), float(high)
    (0.5, 1.5)
    """
    ordered = np.sort(draws, axis=0)  # NaN goes last
    last = np.maximum((~np.isnan(ordered)).sum(0) - 1, 0)

    def at(q: float) -> np.ndarray:
        place = q * last
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, last)
        left = np.take_along_axis(ordered, below[None], 0)[0]
        right = np.take_along_axis(ordered, above[None], 0)[0]
        share = place - below
        with np.errstate(invalid="ignore"):  # an infinite signal to noise: inf - inf
            return np.where(left == right, left, left + (right - left) * share)

    return at((1 - level) / 2), at((1 + level) / 2)


def ratio(numerator: np.ndarray | float, denominator: np.ndarray | float) -> np.ndarray:
    """Division in which an empty denominator gives NaN (0/0), as every share of nothing should."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator) / np.asarray(denominator)


def bootstrap_mean(
    values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0, counts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over axis 0 with its interval, NaN left out; `values` [queries, ...].

    >>> mean, low, high = bootstrap_mean(np.array([0.0, 1.0] * 50))
    >>> float(mean), bool(low < 0.45 < 0.55 < high)
    (0.5, True)
    """
    values = np.asarray(values, float)
    counts = resample_counts(len(values), resamples, seed) if counts is None else counts
    flat = values.reshape(len(values), int(np.prod(values.shape[1:])))
    there = np.isfinite(flat)
    filled = np.where(there, flat, 0.0)
    draws = ratio(counts @ filled, counts @ there.astype(float))
    low, high = quantiles(draws)
    mean = ratio(filled.sum(0), there.sum(0))
    shape = values.shape[1:]
    return mean.reshape(shape), low.reshape(shape), high.reshape(shape)


class Crossed:
    """Resamples that draw seeds and queries each with replacement, ready for any [seeds, queries] of values.

    The same queries recur in every seed, so a query drawn twice comes twice in every seed, and a seed drawn twice
    brings all its queries twice. NaN is left out.
    """

    def __init__(self, seeds: int, queries: int, resamples: int = RESAMPLES, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.by_seed = resample_counts(seeds, resamples, generator)
        self.by_query = resample_counts(queries, resamples, generator)

    def draws(self, values: np.ndarray) -> np.ndarray:
        """The mean of each resample: [resamples]."""
        there = np.isfinite(values)
        if there.all():  # a resample is as large as the sample
            return ((self.by_query @ values.T) * self.by_seed).sum(1) / max(1, values.size)
        total = ((self.by_query @ np.where(there, values, 0.0).T) * self.by_seed).sum(1)
        return ratio(total, ((self.by_query @ there.T.astype(float)) * self.by_seed).sum(1))

    def interval(self, values: np.ndarray) -> Interval:
        return self.interval_and_p(values)[0]

    def interval_and_p(self, values: np.ndarray) -> tuple[Interval, float]:
        """The mean's interval, and a two-sided p from the same resamples.

        p is twice the share of resamples on the other side of zero, never below 2/(resamples+1).
        """
        there, draws = np.isfinite(values), self.draws(values)
        mean = ratio(np.where(there, values, 0.0).sum(), there.sum())
        defined = draws[np.isfinite(draws)]
        other_side = min((defined <= 0).sum(), (defined >= 0).sum())
        p = min(1.0, 2 * (other_side + 1) / (len(defined) + 1)) if len(defined) else float("nan")
        return self._interval(mean, draws, there), float(p)

    def ratio(self, left: np.ndarray, right: np.ndarray) -> Interval:
        """mean(left) / mean(right), both resampled together: a similarity as a share of its ceiling."""
        there = np.isfinite(left) & np.isfinite(right)
        left, right = np.where(there, left, np.nan), np.where(there, right, np.nan)
        mean = ratio(left[there].sum(), right[there].sum())
        return self._interval(mean, ratio(self.draws(left), self.draws(right)), there)

    def _interval(self, mean: np.ndarray, draws: np.ndarray, there: np.ndarray) -> Interval:
        low, high = quantiles(draws)
        return Interval(
            float(mean), float(low), float(high), int(there.any(1).sum()), int(there.any(0).sum())
        )


def crossed_bootstrap(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Mean of [seeds, queries] with an interval over both.

    >>> crossed_bootstrap(np.ones((3, 20))).mean
    1.0
    """
    values = np.atleast_2d(np.asarray(values, float))
    seeds, queries = values.shape
    return Crossed(seeds, queries, resamples, seed).interval(values)


def difference(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left - right per seed and query: [seeds, queries]; with a layer axis, over the layers that both have.

    >>> difference(np.array([[[1.0, np.nan]]]), np.array([[[0.0, 5.0]]]))
    array([[1.]])
    """
    apart = np.asarray(left, float) - np.asarray(right, float)
    if apart.ndim < 3:
        return apart
    there = np.isfinite(apart)
    return ratio(np.where(there, apart, 0.0).sum(-1), there.sum(-1))


def paired_difference(
    left: np.ndarray, right: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """left - right (trained - untrained, lcgd - gd) with a crossed interval."""
    return crossed_bootstrap(difference(left, right), resamples, seed)


@dataclass(frozen=True)
class SignFlip:
    """p of a sign-flip test over seeds, and the smallest p that so many seeds can give."""

    p: float
    smallest: float
    seeds: int


def sign_flip(values: np.ndarray, seed: int = 0, most: int = 14) -> SignFlip:
    """Two-sided: could the seeds' mean differences as well have had other signs?

    All 2^seeds sign patterns up to `most` seeds, as many drawn ones beyond; a seed's queries flip together, because
    they share its demonstrations. `values` [seeds, queries] or [seeds].

    >>> sign_flip(np.array([0.1, 0.2, 0.3]))
    SignFlip(p=0.25, smallest=0.25, seeds=3)
    """
    values = np.asarray(values, float)
    by_seed = mean_by_seed(values)
    by_seed = by_seed[np.isfinite(by_seed)]
    seeds = len(by_seed)
    if seeds == 0:
        return SignFlip(float("nan"), 1.0, 0)
    if seeds <= most:
        signs = 1.0 - 2.0 * ((np.arange(2**seeds)[:, None] >> np.arange(seeds)) & 1)
        smallest = 2.0 ** (1 - seeds)
    else:
        drawn = np.random.default_rng(seed).choice([-1.0, 1.0], (2**most - 1, seeds))
        signs = np.vstack([np.ones(seeds), drawn])  # what was seen is one of the patterns
        smallest = 1 / len(signs)
    flipped = np.abs(signs @ by_seed)
    seen = abs(by_seed.sum())
    p = float((flipped >= seen - 1e-12 * np.abs(by_seed).sum()).mean())  # ties up to rounding
    return SignFlip(p, smallest, seeds)


def mean_by_seed(values: np.ndarray) -> np.ndarray:
    """Mean per seed over its queries, NaN left out: [seeds]."""
    if values.ndim == 1:
        return values
    there = np.isfinite(values)
    return ratio(np.where(there, values, 0.0).sum(-1), there.sum(-1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted for having asked once per key (task); NaN stays NaN and is not counted.

    >>> holm({"sst2": 0.01, "mr": 0.04, "subj": 0.03})
    {'sst2': 0.03, 'mr': 0.06, 'subj': 0.06}
    """
    asked = sorted((p, name) for name, p in p_values.items() if np.isfinite(p))
    adjusted, floor = dict.fromkeys(p_values, float("nan")), 0.0
    for rank, (p, name) in enumerate(asked):
        floor = max(floor, min(1.0, p * (len(asked) - rank)))
        adjusted[name] = floor
    return adjusted
