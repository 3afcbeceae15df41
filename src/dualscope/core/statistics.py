"""Resampling of queries, shares and corrections. No torch, vectorised, seeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc

LEVEL = 0.95
RESAMPLES = 1000
# Below this signal to noise, rounding may turn a change by more than 0.02, the verdict's margin.
SNR_THRESHOLD = 50.0
Bounds = tuple[float, float]
"""Between what a number lies, whatever is drawn."""
ANYWHERE: Bounds = (-math.inf, math.inf)
SHARE: Bounds = (0.0, 1.0)
COSINE: Bounds = (-1.0, 1.0)
SIZE: Bounds = (0.0, math.inf)


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
            found: np.ndarray = np.where(left == right, left, left + (right - left) * share)
            return found

    return at((1 - level) / 2), at((1 + level) / 2)


def ratio(numerator: np.ndarray | float, denominator: np.ndarray | float) -> np.ndarray:
    """Division in which an empty denominator gives NaN (0/0), as every share of nothing should."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = np.asarray(numerator) / np.asarray(denominator)
        return found


def finite_mean(values: Sequence[float]) -> float:
    """The mean of the finite ones; NaN where there is none.

    >>> finite_mean([1.0, 2.0, math.nan])
    1.5
    """
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def finite_means(values: np.ndarray, axis: int) -> np.ndarray:
    """The same along an axis of an array."""
    there = np.isfinite(values)
    return ratio(np.where(there, values, 0.0).sum(axis), there.sum(axis))


def sign_test(values: Sequence[float] | np.ndarray) -> float:
    """How often at least so many of these would be above 0 if each were so with a chance of one in two; one-sided.

    It asks about most values and not about their mean, so skew does not mislead it.

    >>> sign_test([0.1, 0.3, 0.2, 0.1, 0.4]), sign_test([0.1, 0.3, -0.2])
    (0.03125, 0.5)
    """
    there = [value for value in values if math.isfinite(value) and value != 0]
    above = sum(value > 0 for value in there)
    return float(bdtrc(above - 1, len(there), 0.5)) if above else 1.0


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


# Explained shares: of which sums each is a ratio, over the queries of a cell and over the seeds of a run alike.


LEAST = 0.02
"""Nats. Where zero-shot is nearer to in-context learning than this, there is nothing to explain."""


class Parts(NamedTuple):
    """The metrics whose sums make a share: the divergence from ICL that the learner leaves, and zero-shot's."""

    left: str
    whole: str


SHARES = {
    "explained": Parts("kl_icl", "kl_icl_zero_shot"),
    "explained_mismatched": Parts("kl_icl_mismatched", "kl_icl_zero_shot"),
    "explained_null": Parts("kl_icl_null", "kl_icl_zero_shot"),
    "explained_next_token": Parts("kl_next_token", "kl_next_token_zero_shot"),
}


def share_of(left: np.ndarray | float, whole: np.ndarray | float) -> np.ndarray:
    """1 - left / whole, from mean divergences in nats; NaN where there is nothing to explain.

    >>> float(share_of(0.05, 0.2)), float(share_of(0.001, 0.019))
    (0.75, nan)
    """
    left, whole = np.asarray(left, float), np.asarray(whole, float)
    enough = whole >= LEAST
    found: np.ndarray = np.where(enough, 1 - left / np.where(enough, whole, 1.0), np.nan)
    return found
