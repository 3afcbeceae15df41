"""A setting chosen without looking at what is measured, and the curve that it was chosen from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dualscope.core.errors import InputError
from dualscope.core.halving import FIGURES
from dualscope.learners.spare import asking, leaving_one_out

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.learners.bench import Bench
    from dualscope.models.trace import Trace

Candidate = Mapping[str, Any]
Tries = Callable[["Bench", Sequence[Candidate]], Iterable["Tensor"]]
"""The label log-probabilities ([queries, classes]) of a bench before any learning, and under every candidate."""

ENOUGH = 50  # spare examples; fewer choose by chance
MOST = 200


@dataclass(frozen=True)
class Choice:
    """The settings, by the names of the learner's options, and every candidate's figures.

    ``curve`` has a row for every candidate and seed: the candidate's settings, ``seed``, ``accuracy``, ``nll`` (mean
    -log p of the gold label) and ``n``; rows with no settings are the model before any learning.
    """

    settings: dict[str, Any]
    curve: tuple[dict[str, Any], ...]
    n: int  # examples that it was chosen on
    more: dict[str, Any] = field(default_factory=dict)  # what else the choice rests on
    at_edge: bool = False
    """The best is the first or the last of an ordered grid: a better one may lie outside."""


def judges(bench: Bench, materials: int) -> list[Bench]:
    """Benches of the same demonstrations that ask spare examples, other ones than the first ``materials``.

    Where no example is spare, each demonstration in turn is asked after the others.
    """
    lesson, model = bench.lesson, bench.model
    if not bench.spare:
        return [bench.asking(one) for one in leaving_one_out(lesson)]
    asked = bench.spare[materials : materials + MOST]
    if len(asked) < ENOUGH:
        raise InputError(
            f"task '{lesson.episode.task.name}': a setting is chosen on at least {ENOUGH} spare training examples, and "
            f"{len(asked)} are left besides the {materials} that the learner itself reads; give the setting yourself, "
            "ask for fewer shots, or take a task with more training examples"
        )
    return [bench.asking(asking(lesson, model, asked))]


def choose(benches: Sequence[Bench], candidates: Iterable[Candidate], tries: Tries) -> Choice:
    """The candidate that is most accurate over all benches; ties by the lower mean -log p, then the first one."""
    listed = [dict(candidate) for candidate in candidates]
    curve: list[dict[str, Any]] = []
    for bench in benches:
        labels = torch.tensor(bench.lesson.labels, device=bench.model.device)
        for tried, logprobs in zip(({}, *listed), tries(bench, listed), strict=True):
            curve.append(row_of(logprobs, labels, tried, bench.seed))
    best = min(range(len(listed)), key=lambda i: (rank(curve, listed[i]), i))
    return Choice(listed[best], tuple(curve), sum(len(bench.lesson.queries) for bench in benches))


def one_by_one(learn: Callable[[Bench, Candidate], Trace]) -> Tries:
    """Every candidate at work by itself."""

    def tries(bench: Bench, candidates: Sequence[Candidate]) -> Iterator[Tensor]:
        yield bench.zero_shot.label_logprobs
        for candidate in candidates:
            yield learn(bench, candidate).label_logprobs

    return tries


def row_of(logprobs: Tensor, labels: Tensor, settings: Candidate, seed: int) -> dict[str, Any]:
    """A candidate that blew up the model predicts nothing: its queries count as wrong."""
    finite = logprobs.isfinite().all(-1)
    right = (logprobs.argmax(-1) == labels) & finite
    nll = -logprobs.gather(1, labels[:, None])
    nll = nll.masked_fill(~finite[:, None], float("inf"))
    accuracy, mean = torch.stack([right.to(nll).mean(), nll.mean()]).tolist()
    return {**settings, "seed": seed, "accuracy": accuracy, "nll": mean, "n": len(labels)}


def rank(curve: Sequence[Mapping[str, Any]], settings: Candidate) -> tuple[float, float]:
    """Smaller is better: minus the number of right answers, then the mean -log p."""
    rows = [row for row in curve if {k: v for k, v in row.items() if k not in FIGURES} == settings]
    right = sum(round(row["accuracy"] * row["n"]) for row in rows)  # counts: rounding must not break a tie
    return (-right, math.fsum(row["nll"] * row["n"] for row in rows) / sum(row["n"] for row in rows))
