"""Choosing a learning rate without looking at what is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from dualscope.core.errors import InputError
from dualscope.core.halving import GRID, SIZES, RateChoice, Score, choice_of, rounds_of
from dualscope.core.words import GdDemonstrations
from dualscope.learners.bench import Bench
from dualscope.models.trace import Trace
from dualscope.tasks.episode import Episode, spares
from dualscope.tasks.lesson import Lesson, make_lesson
from dualscope.tasks.tokens import pieces_of

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.example import Example
    from dualscope.tasks.task import Task

ENOUGH = 50
MOST = SIZES[-1]


def choose_rate(
    model: Model,
    task: Task,
    seeds: Sequence[int],
    shots: int = 32,
    *,
    queries: int = 2000,
    balanced: bool = False,
    gd_demonstrations: GdDemonstrations = "same",
    grid: Sequence[float] = GRID,
    limit: int = MOST,
) -> RateChoice:
    """The rate at which plain ``gd`` is most accurate on training examples that no episode uses.

    Averaged over the seeds; ties go to the lower mean -log p(gold label), then to the smaller rate. All rates are tried
    on a few examples, the better half on more, and so on (`dualscope.core.halving`). Give it the trained model: the
    rate is then used for every learner, seed and variant, as in the papers.

    >>> from dualscope import Model, Task, choose_rate
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> choice = choose_rate(model, task, seeds=[0], shots=4, queries=10, grid=[0.01, 1.0], limit=50)
    >>> choice.rate in (0.01, 1.0)
    True

    Raises:
        InputError: Fewer than 50 training examples are neither demonstrations nor queries.
    """
    trial = Trial(model, task, tuple(seeds), shots, queries, balanced, gd_demonstrations, limit)
    scores: dict[tuple[float, int, int], Score] = {}
    done: dict[tuple[float, int], Score] = {}
    while True:
        rounds = rounds_of(grid, len(trial.examples), done)
        number, now = len(rounds) - 1, rounds[-1]
        if all((lr, number) in done for lr in now.candidates):
            return choice_of(grid, scores, done, rounds, len(trial.examples))
        for lr in (0.0, *now.candidates):
            for seed in seeds:
                scores[lr, seed, number] = trial.score(seed, lr, now.first, now.last)
            done[lr, number] = sum((scores[lr, seed, number] for seed in seeds), Score())


@dataclass(frozen=True)
class Trial:
    """What rates are tried on: a study's own episodes, asking spare examples."""

    model: Model
    task: Task
    seeds: tuple[int, ...]
    shots: int
    queries: int
    balanced: bool
    gd_demonstrations: GdDemonstrations
    limit: int = MOST

    @cached_property
    def episodes(self) -> dict[int, Episode]:
        return {
            seed: Episode.draw(self.task, self.shots, seed, self.queries, balanced=self.balanced) for seed in self.seeds
        }

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """Training examples that no episode uses; too few are an error."""
        spare = spares(self.task, list(self.episodes.values()))
        found = _that_fit(spare, self.task, self.model, self.limit)
        if len(found) < ENOUGH:
            raise InputError(
                f"task '{self.task.name}': a learning rate is chosen on at least {ENOUGH} training examples that are "
                f"neither demonstrations nor queries, and {len(found)} are left; give a rate yourself (lr: 0.1)"
            )
        return found

    def score(self, seed: int, lr: float, first: int, last: int) -> Score:
        """A rate's score on some of the examples; rate 0 is the model before any learning."""
        lesson = _asking(self.episodes[seed], self.examples[first:last], self.model, self.gd_demonstrations)
        with closing(Bench(self.model, lesson)) as bench:
            return _score(bench.zero_shot if lr == 0 else bench.learned("gd", lr).trace)


def _asking(
    episode: Episode, examples: tuple[Example, ...], model: Model, gd_demonstrations: GdDemonstrations
) -> Lesson:
    """The study's own lesson, its demonstrations as the study's queries let them fit, asking other queries."""
    own = make_lesson(episode, model.tokenizer, model.max_positions, gd_demonstrations=gd_demonstrations)
    texts = [episode.task.prompt(example) for example in examples]
    return replace(
        own,
        queries=tuple(pieces_of(episode.task, model.tokenizer).prompts(texts)),
        labels=tuple(example.label for example in examples),
        query_ids=tuple(example.id for example in examples),
    )


def _that_fit(examples: Iterator[Example], task: Task, model: Model, limit: int) -> tuple[Example, ...]:
    """The first ones that the model can see whole: a few long texts are no reason to choose no rate."""
    pieces = pieces_of(task, model.tokenizer)
    room = model.max_positions - max(1, len(pieces.bos)) - max(map(len, pieces.answers))
    kept: list[Example] = []
    while len(kept) < limit and (some := list(islice(examples, limit))):
        prompts = pieces.prompts([task.prompt(example) for example in some])
        kept += [example for example, prompt in zip(some, prompts, strict=True) if 0 < len(prompt) <= room]
    return tuple(kept[:limit])


def _score(trace: Trace) -> Score:
    """A rate that blew up the model predicts nothing: its queries count as wrong."""
    finite = trace.label_logprobs.isfinite().all(-1)
    right = (trace.predictions == trace.labels) & finite
    nll = -trace.label_logprobs.double().gather(1, trace.labels[:, None]).squeeze(-1)
    nll = nll.masked_fill(~finite, float("inf"))
    return Score(int(right.sum()), float(nll.sum()), len(trace.labels))
