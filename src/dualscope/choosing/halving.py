"""Successive halving: all candidates on a few examples, the better part on more, until the rounds are over."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualscope.core.canonical import canonical

Settings = Mapping[str, Any]
Row = dict[str, Any]
"""What one candidate did on the examples of one seed and round: its settings, ``right``, ``nll``, ``n``."""
FIGURES = ("seed", "accuracy", "nll", "n")  # what a curve notes of a candidate, beside its settings
HELD_OUT = "held_out"  # and of one that is fitted: its loss on examples held out
GRID = tuple(float(f"{10 ** (-4 + k / 2):.3g}") for k in range(11))  # learning rates: 1e-4 .. 10, two a decade
MOST = 200  # spare examples that anything is chosen on
UNTAUGHT = canonical({})
"""No settings: the model before any learning, which every curve begins with."""


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
        return (-self.right / self.n, self.nll / self.n) if self.n else (0.0, math.inf)


@dataclass(frozen=True)
class Rounds:
    """How candidates are tried: on how many examples in all after each round, and which part of them goes on.

    Where an option grows from round to round (``grows``: epochs, say), candidates have its next value in each round, on
    the same examples, and what was tried in an earlier round may still be the best.
    """

    examples: tuple[int, ...] = (MOST,)
    grows: str | None = None
    values: tuple[Any, ...] = ()
    keep: float = 0.5
    fewest: int = 1
    seeds: int | None = None  # so many of a study's; None: all

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Rounds:
        """From plain data, whose lists were tuples."""
        plain: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in facts.items()}
        return cls(**plain)

    def __len__(self) -> int:
        return len(self.values) if self.grows else len(self.examples)

    def examples_of(self, number: int) -> tuple[int, int]:
        """The examples of a round, from the first up to the last."""
        if self.grows:
            return 0, self.examples[0]
        return (0, *self.examples)[number], self.examples[number]

    def settings_of(self, number: int, candidate: Settings) -> Settings:
        return {**candidate, self.grows: self.values[number]} if self.grows else candidate

    def most_tried(self, candidates: int) -> list[tuple[int, int]]:
        """At most so many candidates on so many examples, round by round, for estimates."""
        found = []
        for number in range(len(self)):
            first, last = self.examples_of(number)
            found.append((candidates, last - first))
            candidates = self.left_of(candidates)
        return found

    def left_of(self, candidates: int) -> int:
        return min(candidates, max(self.fewest, math.ceil(candidates * self.keep - 1e-9)))


RATES = Rounds(examples=(25, 50, 100, MOST), fewest=3)
"""How learning rates are chosen: the last step is between neighbours."""


@dataclass(frozen=True)
class Choice:
    """The settings, by the names of the learner's options (and ``lr``), and the whole curve.

    ``curve`` has a row for every candidate and seed: the candidate's settings, ``seed``, ``accuracy``, ``nll`` (mean
    -log p of the gold label) and ``n``, the examples that it was tried on before a better part went on without it; rows
    with no settings are the model before any learning.
    """

    settings: dict[str, Any]
    curve: tuple[dict[str, Any], ...]
    n: int  # examples that it was chosen on, over all seeds
    more: dict[str, Any] = field(default_factory=dict)  # what else the choice rests on
    at_edge: bool = False
    """The best is the first or the last of an ordered grid: a better one may lie outside."""


class Search:
    """A choice under way: what has been tried, and what is to be tried next.

    >>> search = Search(Rounds(examples=(2, 4)), seeds=[0])
    >>> tried = {'{"lr":0.1}': Score(1, 1.0, 2), '{"lr":1.0}': Score(2, 0.5, 2), UNTAUGHT: Score(0, 2.0, 2)}
    >>> search.take({0: tried})
    >>> search.candidates, search.is_over
    (('{"lr":1.0}',), False)
    >>> search.take({0: {'{"lr":1.0}': Score(1, 1.0, 2), UNTAUGHT: Score(0, 2.0, 2)}})
    >>> search.is_over, search.choice().settings
    (True, {'lr': 1.0})
    """

    def __init__(self, rounds: Rounds, seeds: Sequence[int]) -> None:
        self.rounds, self.seeds, self.number = rounds, tuple(seeds)[: rounds.seeds], 0
        self.candidates: tuple[str, ...] | None = None
        """Those of the next round, as JSON; None: all that the learner names."""
        self._scores: dict[str, dict[int, Score]] = {}
        self._first: list[Settings] = []
        self._ran_out = False

    @property
    def is_over(self) -> bool:
        return self.number >= len(self.rounds) or self._ran_out

    def take(self, found: Mapping[int, Mapping[str, Score]]) -> None:
        """The scores of a round: by seed, by settings, in the order in which they were tried."""
        for seed, scores in found.items():
            for settings, score in scores.items():
                known = self._scores.setdefault(settings, {})
                known[seed] = known.get(seed, Score()) + score
        tried = [settings for settings in next(iter(found.values())) if settings != UNTAUGHT]
        self._first = self._first or [json.loads(settings) for settings in tried]
        first, last = self.rounds.examples_of(self.number)
        self._ran_out = not self.rounds.grows and any(
            s.n < last - first for one in found.values() for s in one.values()
        )
        best = set(sorted(tried, key=self._rank)[: self.rounds.left_of(len(tried))])
        self.candidates = tuple(self._as_candidate(settings) for settings in tried if settings in best)
        self.number += 1

    def _rank(self, settings: str) -> tuple[float, float, int]:
        """Of several that tie, the one that was named first."""
        return (*self._total(settings).rank, list(self._scores).index(settings))

    def _total(self, settings: str) -> Score:
        return sum(self._scores[settings].values(), Score())

    def _as_candidate(self, settings: str) -> str:
        plain = json.loads(settings)
        plain.pop(self.rounds.grows, None)
        return canonical(plain)

    def choice(self) -> Choice:
        """The best of those that were tried on the most examples."""
        tried = [settings for settings in self._scores if settings != UNTAUGHT]
        most = max(self._total(settings).n for settings in tried)
        best = min((one for one in tried if self._total(one).n == most), key=self._rank)
        settings = json.loads(best)
        return Choice(settings, tuple(self._curve()), most, at_edge=self._is_at_edge(settings))

    def _curve(self) -> list[Row]:
        return [
            {**json.loads(settings), "seed": seed, "accuracy": score.right / score.n, "nll": score.nll / score.n}
            | {"n": score.n}
            for seed in self.seeds
            for settings, by_seed in sorted(self._scores.items(), key=lambda item: item[0] != UNTAUGHT)
            if (score := by_seed.get(seed)) is not None and score.n
        ]

    def _is_at_edge(self, best: Settings) -> bool:
        """Whether a rate below or above all that was tried, or more of what grows, might be better yet."""
        grown = self.rounds.grows
        others = {name: value for name, value in best.items() if name not in ("lr", grown)}
        alike = [one for one in self._first if {k: v for k, v in one.items() if k not in ("lr", grown)} == others]
        rates = [one["lr"] for one in alike if "lr" in one]
        at_end = len(set(rates)) > 1 and best["lr"] in (min(rates), max(rates))
        return at_end or (grown is not None and len(self.rounds) > 1 and best[grown] == self.rounds.values[-1])
