"""What cells ask of a bench: their learners' results, for as long as they need them. No torch until it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dualscope.studies.cell import Cell, Learning
from dualscope.studies.plan import IN_CONTEXT, ZERO_SHOT

if TYPE_CHECKING:
    from dualscope.learners import Bench, Learned


def result_of(bench: Bench, learning: Learning) -> Learned:
    from dualscope.learners import Learned

    if learning.learner == ZERO_SHOT.learner:
        return Learned(bench.zero_shot)
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
