"""Trying candidates on spare examples: in this process all rounds, or for a study one seed's part of one round."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from dualscope.choosing.halving import MOST, UNTAUGHT, Choice, Rounds, Score, Search, Settings
from dualscope.choosing.spare_examples import asking, leaving_one_out
from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace
    from dualscope.tasks.lesson import Lesson
    from dualscope.tasks.mapping import Example

ENOUGH = 50  # spare examples; fewer choose by chance
LEFT_OUT = 16  # demonstrations that are asked after the others, where no example is spare


class Asked(Protocol):
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


B = TypeVar("B", bound=Asked)
Attempts = Callable[[B, Sequence[Settings]], Iterable["Tensor"]]
"""The label log-probabilities, [queries, classes], that each candidate leaves on a bench."""
Known = dict[str, Score]
"""Scores by settings, as JSON."""


def judges(bench: B, materials: int) -> list[B]:
    """Benches of the same demonstrations that ask spare examples, other ones than the first ``materials``.

    Where no example is spare, demonstrations in turn are asked after the others.
    """
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


def _score(logprobs: Tensor, judge: Asked) -> Score:
    """A candidate that blew up the model predicts nothing: its queries count as wrong."""
    labels = logprobs.new_tensor(judge.lesson.labels).long()
    finite = logprobs.isfinite().all(-1)
    right = (logprobs.argmax(-1) == labels) & finite
    nll = -logprobs.double().gather(1, labels[:, None]).squeeze(-1).masked_fill(~finite, float("inf"))
    return Score(int(right.sum()), float(nll.sum()), len(labels))
