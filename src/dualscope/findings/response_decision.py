"""The test of a response: would it be as like in-context learning's if draws, or queries, were paired at random?

Two re-pairings of S with R, because each alone is too easy to pass: of the draws (within levels and episodes), and of
the queries (one permutation for all draws of an episode). The p-value is the larger of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from dualscope.core.response_products import ComparedPart, given_copying, weighted
from dualscope.core.words import Level

REPAIRINGS = 9_999
Way = Literal["draws", "queries"]
WAYS: tuple[Way, ...] = ("draws", "queries")


@dataclass(frozen=True)
class EpisodePair:
    """R and S on one episode: one part (the answers), or one a layer (the outputs)."""

    parts: tuple[ComparedPart, ...]
    levels: tuple[Level | None, ...]

    @property
    def value(self) -> float:
        """r given copying, layers weighted by what R learned there."""
        found = np.array([part.given_copying for part in self.parts])
        return float(weighted(found, [part.weight for part in self.parts]))

    @property
    def plain(self) -> float:
        """The same with nothing taken out."""
        found = np.array([part.plain for part in self.parts])
        return float(weighted(found, [part.weight for part in self.parts]))

    def repaired(self, pairings: np.ndarray, way: Way) -> np.ndarray:
        """The value for each of so many pairings: [pairings].

        ``pairings`` says which of S's draws (or queries) stands beside each of R's: [draws or queries, pairings].
        """
        copied = [part.copying.with_own for part in self.parts if part.copying and part.copying.is_reproducible]
        products = [*(part.products for part in self.parts), *copied]
        # All parts stand side by side: one look-up fetches a pair's products of all of them.
        tables = np.stack([one.draws if way == "draws" else one.queries for one in products], -1)
        sums = np.zeros((pairings.shape[1], len(products)))
        for row, beside in enumerate(pairings):
            sums += tables[row].take(beside, axis=0)
        totals = iter(sums.T)
        found = list(zip(self.parts, totals, strict=False))
        own = {id(one): next(totals) for one in copied}
        values = [
            given_copying(total, own.get(id(part.copying and part.copying.with_own), 0.0), part.products, part.copying)
            for part, total in found
        ]
        return weighted(np.array(values), [part.weight for part in self.parts])


@dataclass(frozen=True)
class RepairingTest:
    """How often a random pairing does as well."""

    p: float
    z: float
    """How many standard deviations of the random pairings the value lies above them, by the harder re-pairing."""
    band: tuple[float, float]
    """Between what 95 % of the random pairings of draws lie, as a mean over episodes."""


def repairing_test(episodes: Sequence[EpisodePair], seed: int = 0, count: int = REPAIRINGS) -> RepairingTest:
    """Of the sum over a task's episodes of r given copying; one-sided."""
    known = [episode for episode in episodes if np.isfinite(episode.value)]
    if not known:
        return RepairingTest(float("nan"), float("nan"), (float("nan"), float("nan")))
    total = sum(episode.value for episode in known)
    p, z, band = 0.0, np.inf, (0.0, 0.0)
    for number, way in enumerate(WAYS):
        sizes = tuple(one.levels if way == "draws" else len(one.parts[0].products.queries) for one in known)
        sums = np.zeros(count)
        for episode, pairings in zip(known, random_pairings(sizes, count, (seed, 22, number)), strict=True):
            values = episode.repaired(pairings, way)
            sums += np.where(np.isfinite(values), values, 0.0)
        p = max(p, float((1 + (sums >= total - 1e-12).sum()) / (count + 1)))
        spread = sums.std()
        z = min(z, float((total - sums.mean()) / spread) if spread > 0 else 0.0)
        if way == "draws":
            low, high = np.quantile(sums / len(known), [0.025, 0.975])
            band = float(low), float(high)
    return RepairingTest(p, z, band)


@lru_cache(maxsize=4)  # the hypotheses of a task are tested on the same episodes
def random_pairings(
    sizes: tuple[tuple[Level | None, ...] | int, ...], count: int, seed: tuple[int, ...]
) -> list[np.ndarray]:
    """For each episode so many permutations, of its queries (their number) or of its draws within their levels.

    Each is [draws or queries, pairings].
    """
    rng = np.random.default_rng(seed)
    return [
        np.ascontiguousarray(_permutations((None,) * size if isinstance(size, int) else size, count, rng).T)
        for size in sizes
    ]


def _permutations(levels: Sequence[Level | None], count: int, rng: np.random.Generator) -> np.ndarray:
    """Permutations that keep every place in its level: [count, places]."""
    found = np.tile(np.arange(len(levels)), (count, 1))
    for level in dict.fromkeys(levels):
        at = [row for row, own in enumerate(levels) if own == level]
        found[:, at] = rng.permuted(np.tile(at, (count, 1)), axis=1)
    return found


# The rule of the response's answer, as a function of one number a seed. Simulated by `benchmarks.response_rates`.


ResponseWord = Literal["labels ignored", "labels copied", "cannot tell", "alike", "different", "partly alike"]
ALPHA = 0.05
SEEDS = 3  # fewer cannot decide
IGNORED = 0.05  # the learned share of ICL's answers below which the task is recognised, and nothing learned
FLOOR = 0.01  # the learned share of a learner or of its plant below which it has no response to compare
FOUND = 0.5  # what a plant's r has to be, for the instrument to have found what was planted
MARGIN = 0.15  # how far below its target a learner may lie and be called alike
FAR = 0.25  # of its target: a learner that lies below is called different
MOST_SEEDS = 50


@dataclass(frozen=True)
class OverSeeds:
    """A correlation over seeds: the mean of Fisher's z, and Student's interval over seeds, as correlations."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], level: float = 0.95) -> OverSeeds:
        """NaN left out. One seed has no interval.

        >>> found = OverSeeds.of([0.5, 0.5, 0.5])
        >>> round(found.mean, 6), round(found.low, 6)
        (0.5, 0.5)
        """
        known = np.array([value for value in values if math.isfinite(value)], float)
        if not len(known):
            return cls(math.nan, math.nan, math.nan, ())
        z = fisher(known)
        reach = math.nan
        if len(z) > 1:
            reach = float(stdtrit(len(z) - 1, (1 + level) / 2)) * float(z.std(ddof=1)) / math.sqrt(len(z))
        ends = np.tanh([z.mean(), z.mean() - reach, z.mean() + reach])
        mean, low, high = (float(end) for end in ends)
        return cls(mean, low, high, tuple(float(value) for value in known))


def fisher(values: np.ndarray | Sequence[float]) -> np.ndarray:
    found: np.ndarray = np.arctanh(np.clip(np.asarray(values, float), -0.999, 0.999))
    return found


@dataclass(frozen=True)
class Decision:
    """What can be said, and what would help where nothing can."""

    word: ResponseWord
    why: str = ""
    seeds_needed: int | None = None


def decide(
    values: Sequence[float],
    targets: Sequence[float],
    p: float,
    z: float = math.nan,
    asked: int = 1,
    rivals: Mapping[str, Sequence[float]] | None = None,
) -> Decision:
    """From r given copying and its target, one of each a seed, and the p-value after Holm over ``asked`` pairs.

    ``rivals`` are the values of hypotheses of other families on the same seeds; ``z`` how far above random pairings the
    value lies, for the number of seeds that would do.
    """
    both = np.array([pair for pair in zip(values, targets, strict=True) if np.isfinite(pair).all()], float)
    seeds = len(both)
    if seeds < SEEDS:
        return Decision("cannot tell", f"{seeds} seed{'s' * (seeds != 1)} cannot decide", SEEDS)
    r, target = both.T
    if _bound(r - target, -1) > -MARGIN and not _outdone(values, rivals or {}):
        return Decision("alike")
    if _bound(r - FAR * target, +1) < 0:
        return Decision("different")
    if p < ALPHA:
        return Decision("partly alike")
    return Decision("cannot tell", f"{seeds} seeds are too few", _seeds_needed(r, target, z, asked))


def _bound(values: np.ndarray, side: int, seeds: int | None = None) -> float:
    """The one-sided 95 % bound of a mean over seeds; ``seeds``: as if there were so many."""
    n = seeds or len(values)
    reach = float(stdtrit(n - 1, 1 - ALPHA)) * float(values.std(ddof=1)) / math.sqrt(n)
    return float(values.mean()) + side * reach


def _outdone(values: Sequence[float], rivals: Mapping[str, Sequence[float]]) -> bool:
    """Whether a hypothesis of another family comes closer, by an interval that holds for all of them together."""
    for other in rivals.values():
        apart = fisher(other) - fisher(values)
        apart = apart[np.isfinite(apart)]
        if len(apart) < SEEDS:
            continue
        reach = float(stdtrit(len(apart) - 1, 1 - ALPHA / 2 / len(rivals)))
        if apart.mean() - reach * apart.std(ddof=1) / math.sqrt(len(apart)) > 0:
            return True
    return False


def _seeds_needed(r: np.ndarray, target: np.ndarray, z: float, asked: int) -> int | None:
    """The fewest seeds that would give an answer if they were like these; None where no usual number would."""
    for seeds in range(len(r) + 1, MOST_SEEDS + 1):
        if _bound(r - target, -1, seeds) > -MARGIN or _bound(r - FAR * target, +1, seeds) < 0:
            return seeds
        if math.isfinite(z) and z * math.sqrt(seeds / len(r)) > float(-ndtri(ALPHA / asked)):
            return seeds
    return None


def simultaneous(values: Mapping[str, Sequence[float]]) -> dict[str, OverSeeds]:
    """Intervals that hold for all of a ranking's hypotheses together (Bonferroni over them)."""
    level = 1 - ALPHA / max(1, len(values))
    return {name: OverSeeds.of(own, level) for name, own in values.items()}
