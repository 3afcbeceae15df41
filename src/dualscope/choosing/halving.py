"""Successive halving: all candidates on a few examples, the better part on more, until the rounds are over.

`choose` runs all rounds in this process; a study lets its workers try one seed's part of a round each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace
    from dualscope.tasks.lesson import Lesson
    from dualscope.tasks.mapping import Example


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


ENOUGH = 50  # spare examples; fewer choose by chance
LEFT_OUT = 16  # demonstrations that are asked after the others, where no example is spare


class ChoiceBench(Protocol):
    """What a choice needs of a bench."""

    @property
    def model(self) -> Model: ...
    @property
    def lesson(self) -> Lesson: ...
    @property
    def seed(self) -> int: ...
    @property
    def spare(self) -> Sequence[Example]: ...
    @property
    def zero_shot(self) -> Trace: ...
    def asking(self, lesson: Lesson) -> Self: ...


B = TypeVar("B", bound=ChoiceBench)
Attempts = Callable[[B, Sequence[Settings]], Iterable["Tensor"]]
"""The label log-probabilities, [queries, classes], that each candidate leaves on a bench."""
Known = dict[str, Score]
"""Scores by settings, as JSON."""


def judges(bench: B, materials: int) -> list[B]:
    """Benches of the same demonstrations that ask spare examples, other ones than the first ``materials``.

    Where no example is spare, demonstrations in turn are asked after the others.
    """
    from dualscope.choosing.spare_examples import asking, leaving_one_out  # torch: plans are made without it

    lesson = bench.lesson
    if not bench.spare:
        return [bench.asking(one) for one in leaving_one_out(lesson)[:LEFT_OUT]]
    asked = bench.spare[materials : materials + MOST]
    if len(asked) < ENOUGH:
        own = f" besides the {materials} that the learner itself reads" if materials else ""
        raise InputError(
            f"task '{lesson.episode.task.name}': a setting is chosen on at least {ENOUGH} spare training examples, and "
            f"{len(asked)} are left{own}; give the setting yourself (a learning rate with --lr 0.1), ask for fewer "
            "shots or queries, or take a task with more training examples"
        )
    return [bench.asking(asking(lesson, bench.model, asked))]


def try_round(
    bench: B,
    candidates: Sequence[Settings],
    attempts: Attempts[B],
    examples: tuple[int, int],
    materials: int = 0,
    known: Mapping[str, Score] | None = None,
    keep: Callable[[Known], None] = lambda _scores: None,
) -> Known:
    """The score of every candidate on some of a bench's spare examples, and of the model before any learning.

    ``known`` scores are not tried again; ``keep`` hears of all of them after each new one.
    """
    found = dict(known or {})
    wanted = {UNTAUGHT: None, **{canonical(dict(one)): one for one in candidates}}
    asked = [_some(judge, examples) for judge in judges(bench, materials)]
    asked = [judge for judge in asked if judge.lesson.queries]
    if not asked:
        return dict.fromkeys(wanted, Score())
    todo = [settings for name, settings in wanted.items() if settings is not None and name not in found]
    if UNTAUGHT not in found:
        found[UNTAUGHT] = sum((_score(judge.zero_shot.label_logprobs, judge) for judge in asked), Score())
    if len(asked) == 1:
        for settings, logprobs in zip(todo, attempts(asked[0], todo), strict=True):
            found[canonical(dict(settings))] = _score(logprobs, asked[0])
            keep(found)
    else:
        totals = [Score()] * len(todo)
        for judge in asked:
            tried = zip(totals, attempts(judge, todo), strict=True)
            totals = [total + _score(logprobs, judge) for total, logprobs in tried]
        found |= {canonical(dict(settings)): total for settings, total in zip(todo, totals, strict=True)}
    return {name: found[name] for name in wanted}


def choose(
    benches: Sequence[B], candidates: Sequence[Settings], attempts: Attempts[B], rounds: Rounds, materials: int = 0
) -> Choice:
    """The best candidate over the benches of several seeds, all rounds in this process."""
    search = Search(rounds, [bench.seed for bench in benches])
    while not search.is_over:
        alive = candidates if search.candidates is None else list(map(json.loads, search.candidates))
        tried = [rounds.settings_of(search.number, one) for one in alive]
        examples = rounds.examples_of(search.number)
        search.take(
            {
                seed: try_round(bench, tried, attempts, examples, materials)
                for seed, bench in zip(search.seeds, benches, strict=False)
            }
        )
    return search.choice()


def _some(judge: B, examples: tuple[int, int]) -> B:
    queries = range(len(judge.lesson.queries))[slice(*examples)]
    return judge if len(queries) == len(judge.lesson.queries) else judge.asking(judge.lesson.only(queries))


def _score(logprobs: Tensor, judge: ChoiceBench) -> Score:
    """A candidate that blew up the model predicts nothing: its queries count as wrong."""
    labels = logprobs.new_tensor(judge.lesson.labels).long()
    finite = logprobs.isfinite().all(-1)
    right = (logprobs.argmax(-1) == labels) & finite
    nll = -logprobs.double().gather(1, labels[:, None]).squeeze(-1).masked_fill(~finite, float("inf"))
    return Score(int(right.sum()), float(nll.sum()), len(labels))
