"""What cells ask of a bench: their learners' results, for as long as they need them. No torch until it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dualscope.studies.cell import Cell, Learning
from dualscope.studies.plan import IN_CONTEXT, ZERO_SHOT

if TYPE_CHECKING:
    from dualscope.learners import Bench, Learned
    from dualscope.models import Trace

REREAD_QUERIES, REREAD_BATCH = 10, 5  # for the signal to noise: a few queries, at an unusual batch size


def result_of(bench: Bench, learning: Learning) -> Learned:
    from dualscope.learners import Learned

    if learning.learner == ZERO_SHOT.learner:
        return Learned(bench.zero_shot)
    if learning == IN_CONTEXT:
        return Learned(bench.in_context)
    return bench.learned(learning.learner, lr=learning.lr, **learning.settings)


def forget(bench: Bench, past: Sequence[Cell], future: Sequence[Cell]) -> None:
    """Only what cells to come still need is held: memory does not grow with the number of rates."""
    for learning in set(learnings(past[-1:])) - set(learnings(future)):
        if learning not in (ZERO_SHOT, IN_CONTEXT):
            bench.forget(learning.learner, lr=learning.lr, **learning.settings)


def learnings(cells: Sequence[Cell]) -> Iterator[Learning]:
    for cell in cells:
        yield cell.learning
        yield from cell.beside
        if cell.reference is not None:
            yield cell.reference


def reread(bench: Bench, learning: Learning, learned: Learned) -> Trace | None:
    """A few queries of the same learner at another batch size, where the model itself can be read again."""
    few = slice(0, REREAD_QUERIES)
    lesson = bench.lesson
    lesson = replace(
        lesson, queries=lesson.queries[few], labels=lesson.labels[few], query_ids=lesson.query_ids[few]
    )
    if learning == IN_CONTEXT:
        return bench.model.read(lesson, bench.prefix, batch_size=REREAD_BATCH)
    if learned.again is not None:
        return learned.again(lesson, REREAD_BATCH)
    if learned.delta is None or learning.learner in ("gd-linearized", "probe"):
        return None
    with learned.delta.applied(bench.model):
        return bench.model.read(lesson, batch_size=REREAD_BATCH)
