"""The test of a response: would it be as like in-context learning's if draws, or queries, were paired at random?

Two re-pairings of S with R, because each alone is too easy to pass: of the draws (within levels and episodes), and of
the queries (one permutation for all draws of an episode). The p-value is the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dualscope.core.response_products import ComparedPart, given_copying, weighted
from dualscope.core.words import Level

REPAIRINGS = 9_999
CHUNK = 1_000  # re-pairings of queries at a time: memory does not grow with their number
Way = Literal["draws", "queries"]


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

    def repaired(self, count: int, rng: np.random.Generator, way: Way) -> np.ndarray:
        """The value for so many random pairings: [count]."""
        if way == "draws":
            return self._values(_within_levels(self.levels, count, rng), way)
        queries = len(self.parts[0].products.queries)
        chunks = []
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            chunks.append(self._values(rng.permuted(np.tile(np.arange(queries), (size, 1)), axis=1), way))
        return np.concatenate(chunks)

    def _values(self, pairing: np.ndarray, way: Way) -> np.ndarray:
        """[pairings] from which of S's draws (or queries) stands beside each of R's: [pairings, draws or queries]."""
        rows = np.arange(pairing.shape[1])
        found = []
        for part in self.parts:
            products, copying = part.products, part.copying
            matrix = products.draws if way == "draws" else products.queries
            own: np.ndarray | float = 0.0
            if copying is not None and copying.is_reproducible:
                beside = copying.with_own.draws if way == "draws" else copying.with_own.queries
                own = beside[rows, pairing].sum(1)
            found.append(given_copying(matrix[rows, pairing].sum(1), own, products, copying))
        return weighted(np.array(found), [part.weight for part in self.parts])


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
    for number, way in enumerate(("draws", "queries")):
        rng = np.random.default_rng([seed, 22, number])
        sums = np.zeros(count)
        for episode in known:
            values = episode.repaired(count, rng, way)  # type: ignore[arg-type]
            sums += np.where(np.isfinite(values), values, 0.0)
        p = max(p, float((1 + (sums >= total - 1e-12).sum()) / (count + 1)))
        spread = sums.std()
        z = min(z, float((total - sums.mean()) / spread) if spread > 0 else 0.0)
        if way == "draws":
            low, high = np.quantile(sums / len(known), [0.025, 0.975])
            band = float(low), float(high)
    return RepairingTest(p, z, band)


def _within_levels(levels: Sequence[Level | None], count: int, rng: np.random.Generator) -> np.ndarray:
    """Permutations of the draws that keep every draw in its level: [count, draws]."""
    found = np.tile(np.arange(len(levels)), (count, 1))
    for level in dict.fromkeys(levels):
        at = [row for row, own in enumerate(levels) if own == level]
        found[:, at] = rng.permuted(np.tile(at, (count, 1)), axis=1)
    return found
