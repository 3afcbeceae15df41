"""Successive halving: all candidates on a few examples, the better half on more, until one is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIGURES = ("seed", "accuracy", "nll", "n")  # what is noted of a candidate, beside its settings
HELD_OUT = "held_out"  # and of one that is fitted: its loss on examples held out
GRID = tuple(float(f"{10 ** (-4 + k / 2):.3g}") for k in range(11))  # 1e-4 .. 10, two a decade
SIZES = (25, 50, 100, 200)
"""How many examples a candidate has been tried on after each round."""
FEWEST = 3  # candidates that see all examples: the last step is between neighbours


@dataclass(frozen=True)
class Score:
    """How a candidate did on some examples."""

    right: int = 0
    nll: float = 0.0  # the sum of -log p(gold label)
    n: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.nll + other.nll, self.n + other.n)

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: more right, and where that ties the likelier gold labels."""
        if self.n == 0:
            return 0.0, math.inf
        return -self.right / self.n, self.nll / self.n


@dataclass(frozen=True)
class Round:
    """Candidates to be tried on the examples from ``first`` up to ``last``."""

    candidates: tuple[float, ...]
    first: int
    last: int


def rounds_of(grid: Sequence[float], examples: int, known: Mapping[tuple[float, int], Score]) -> list[Round]:
    """The rounds as far as they are settled: each one's candidates are the better half of those before it.

    ``known`` has the score of a candidate in a round, by its number. The last round of the list is the one to do next,
    or, where it is done too, the final one.

    >>> few = rounds_of((0.1, 1.0, 10.0, 100.0, 1e3, 1e4), 60, {})
    >>> len(few), few[0].last
    (1, 25)
    """
    most = min(examples, SIZES[-1])
    sizes = [size for size in SIZES if size < most] + [most]
    candidates, found = tuple(grid), []
    for number, (first, last) in enumerate(zip([0, *sizes], sizes, strict=False)):
        found.append(Round(candidates, first, last))
        if any((candidate, number) not in known for candidate in candidates):
            break
        kept = max(FEWEST, math.ceil(len(candidates) / 2))
        candidates = tuple(sorted(best_first(candidates, known, number)[:kept]))
    return found


def best_first(candidates: Sequence[float], known: Mapping[tuple[float, int], Score], number: int) -> list[float]:
    """By all rounds so far; of two that tie, the smaller candidate."""

    def rank(candidate: float) -> tuple[float, float, float]:
        total = sum((known[candidate, round_] for round_ in range(number + 1)), Score())
        return (*total.rank, candidate)

    return sorted(candidates, key=rank)


@dataclass(frozen=True)
class RateChoice:
    """The rate, and the whole curve that it was chosen from.

    ``curve`` has a row for every rate and seed: ``lr``, ``seed``, ``accuracy``, ``nll`` (mean -log p of the gold
    label) and ``n``, the examples that it was tried on before a better half went on without it; the rows of rate 0
    are the model before any learning.
    """

    rate: float
    at_edge: bool  # the best rate is the grid's first or last: a better one may lie outside
    curve: tuple[dict[str, Any], ...]
    n: int  # examples that it was chosen on


def choice_of(
    grid: Sequence[float],
    scores: Mapping[tuple[float, int, int], Score],
    done: Mapping[tuple[float, int], Score],
    rounds: Sequence[Round],
    examples: int,
) -> RateChoice:
    """What the rounds come to, with the curve: ``scores`` by rate, seed and round."""
    best = best_first(rounds[-1].candidates, done, len(rounds) - 1)[0]
    curve: dict[tuple[float, int], Score] = {}
    for (lr, seed, _), score in scores.items():
        curve[lr, seed] = curve.get((lr, seed), Score()) + score
    rows = tuple(
        {"lr": lr, "seed": seed, "accuracy": score.right / score.n, "nll": score.nll / score.n, "n": score.n}
        for (lr, seed), score in sorted(curve.items(), key=lambda item: (item[0][1], item[0][0]))
    )
    return RateChoice(best, best in (min(grid), max(grid)), rows, examples)
