"""The test of a response: would it be as like in-context learning's if draws, or queries, were paired at random?

Two re-pairings of S with R, because each alone is too easy to pass: of the draws (within levels and episodes), and of
the queries (one permutation for all draws of an episode). The p-value is the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

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
