"""Choosing a learning rate without looking at what is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from dualscope.core.errors import InputError
from dualscope.learners.bench import Bench
from dualscope.models.trace import Trace
from dualscope.tasks.episode import Episode, spares
from dualscope.tasks.lesson import Lesson, make_lesson
from dualscope.tasks.tokens import pieces_of

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.example import Example
    from dualscope.tasks.task import Task

GRID = tuple(float(f"{10 ** (-4 + k / 2):.3g}") for k in range(11))  # 1e-4 .. 10, two a decade
ENOUGH = 50
MOST = 200


@dataclass(frozen=True)
class Choice:
    """The rate, and the whole curve that it was chosen from.

    ``curve`` has a row for every rate and seed: ``lr``, ``seed``, ``accuracy``, ``nll`` (mean -log p of the gold
    label) and ``n``; the rows of rate 0 are the model before any learning.
    """

    rate: float
    at_edge: bool  # the best rate is the grid's first or last: a better one may lie outside
    curve: tuple[dict[str, Any], ...]
    n: int  # examples that it was chosen on


def choose_rate(
    model: Model,
    task: Task,
    seeds: Sequence[int],
    shots: int = 32,
    *,
    queries: int = 2000,
    balanced: bool = False,
    gd_demonstrations: str = "same",
    grid: Sequence[float] = GRID,
    limit: int = MOST,
) -> Choice:
    """The rate at which plain ``gd`` is most accurate on training examples that no episode uses.

    Averaged over the seeds; ties go to the lower mean -log p(gold label), then to the smaller rate. Give it the
    trained model: the rate is then used for every learner, seed and variant, as in the papers.
    """
    episodes = [Episode.draw(task, shots, seed, queries, balanced=balanced) for seed in seeds]
    examples = _that_fit(spares(task, episodes), task, model, limit)
    if len(examples) < ENOUGH:
        raise InputError(
            f"task '{task.name}': a learning rate is chosen on at least {ENOUGH} training examples that are neither "
            f"demonstrations nor queries, and {len(examples)} are left; give a rate yourself (lr: 0.1)"
        )
    curve = []
    for episode in episodes:
        lesson = _asking(episode, examples, model, gd_demonstrations)
        bench = Bench(model, lesson)
        curve.append(_row(bench.zero_shot, 0.0, episode.seed))
        for lr in grid:
            # A new bench each time, so that traces of past rates are not kept.
            learned = Bench(model, lesson, zero_shot=bench.zero_shot).learned("gd", lr)
            curve.append(_row(learned.trace, lr, episode.seed))
    best = min(grid, key=lambda lr: _rank(curve, lr))
    return Choice(best, best in (min(grid), max(grid)), tuple(curve), len(examples))


def _asking(episode: Episode, examples: tuple[Any, ...], model: Model, gd_demonstrations: Any) -> Lesson:
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


def _row(trace: Trace, lr: float, seed: int) -> dict[str, Any]:
    """A rate that blew up the model predicts nothing: its queries count as wrong."""
    finite = trace.label_logprobs.isfinite().all(-1)
    right = (trace.predictions == trace.labels) & finite
    nll = -trace.label_logprobs.gather(1, trace.labels[:, None])
    nll = nll.masked_fill(~finite[:, None], float("inf"))
    accuracy, mean = torch.stack([right.to(nll).mean(), nll.mean()]).tolist()
    return {"lr": lr, "seed": seed, "accuracy": accuracy, "nll": mean, "n": len(trace.labels)}


def _rank(curve: list[dict[str, Any]], lr: float) -> tuple[float, float, float]:
    rows = [row for row in curve if row["lr"] == lr]
    right = sum(round(row["accuracy"] * row["n"]) for row in rows)  # counts: rounding must not break a tie
    return (-right, math.fsum(row["nll"] for row in rows) / len(rows), lr)
