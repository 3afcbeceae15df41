"""Learners that are taught nothing: contexts without a lesson, and the query moved to where it stands in one."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.learners.bench import Bench
    from dualscope.models.reading.trace import Trace
    from dualscope.tasks.lesson import Lesson


class NullContextOptions(Options):
    kind: Literal["unlabelled", "scrambled", "other-task"] = Field(
        "unlabelled", description="demonstrations without labels, their tokens shuffled, or another task's"
    )


@LEARNERS.register("null-context")
class NullContext(Learner[NullContextOptions]):
    """A context of exactly the same length that does not teach the task."""

    title = "a context that teaches nothing"
    colour = "@olive"
    role = "null"
    changes_model = False
    options = NullContextOptions

    def needs_other(self, options: NullContextOptions) -> bool:
        return options.kind == "other-task"

    def learn(self, bench: Bench, lr: float | None, options: NullContextOptions) -> Learned:
        lesson = bench.lesson
        if options.kind == "unlabelled":
            context = unlabelled(lesson)
        elif options.kind == "scrambled":
            context = scrambled(lesson)
        else:
            context = filled(lesson, bench.other)
        return bench.after(context, bench.context_want)


def unlabelled(lesson: Lesson) -> tuple[int, ...]:
    """Every label token replaced by the separator, so that the length stays."""
    context = lesson.bos
    for demonstration in lesson.demonstrations:
        filler = lesson.separator or demonstration.prompt[-1:]
        blank = tuple(islice(cycle(filler), len(demonstration.label)))
        context += demonstration.prompt + blank + lesson.separator
    return context


def scrambled(lesson: Lesson) -> tuple[int, ...]:
    """The demonstrations' tokens in random order; BOS and the separators stay where they are."""
    tokens = [t for d in lesson.demonstrations for t in (*d.prompt, *d.label)]
    mixed = iter(np.random.default_rng([lesson.episode.seed, 6]).permutation(tokens).tolist())
    context = lesson.bos
    for demonstration in lesson.demonstrations:
        context += tuple(islice(mixed, len(demonstration.prompt) + len(demonstration.label))) + lesson.separator
    return context


def filled(lesson: Lesson, other: Lesson) -> tuple[int, ...]:
    """Another task's demonstrations, repeated or cut at the front to the same length."""
    length = len(lesson.context) - len(lesson.bos)
    backwards = other.context[len(other.bos) :][::-1]
    return lesson.bos + tuple(islice(cycle(backwards), length))[::-1]


@LEARNERS.register("zero-shot-offset")
class ZeroShotOffset(Learner[Options]):
    """No context, but BOS and query moved to where the query stands in context: what position alone does."""

    title = "the query moved to its position in context"
    colour = "@olive"
    decides = "position"
    role = "null"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        lesson, model = bench.lesson, bench.model
        offset = len(lesson.context) - len(lesson.bos)

        def again(few: Lesson) -> Trace:
            return model.read(few, position_offset=offset)

        trace = model.read(lesson, want=bench.read_want, position_offset=offset)
        # Where positions are relative, moving a query moves nothing.
        return Learned(trace, again=again, by_context=True, is_rounding=model.relative_positions)


# What softmax takes away when it attends to demonstrations, and nothing in its place.


@LEARNERS.register("dilution")
class Dilution(Learner[Options]):
    """Zero-shot, each head's output shrunk by the weight that ICL gives to the demonstrations: nothing is learned.

    With the same inputs a head's output in context is (1 - lam) z + lam demos, lam the softmax weight on the
    demonstrations and their separators; here it is (1 - lam) z, at the read position, per query, layer and head, and
    the layers above see what is left. Predictions are read off that position; where traces are read at the first
    label (`read_at: first-label`) they are made one token earlier, and are zero-shot's.
    """

    title = "attention diluted as the context dilutes it"
    decides = "dilution"
    role = "null"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        kept = 1 - demonstration_mass(bench)
        place = {query: row for row, query in enumerate(bench.lesson.query_ids)}

        def again(lesson: Lesson) -> Trace:
            rows = [place[query] for query in lesson.query_ids]
            return bench.model.read(lesson, head_scales=kept[rows])

        return Learned(bench.model.read(bench.lesson, want=bench.read_want, head_scales=kept), again=again)


def demonstration_mass(bench: Bench) -> Tensor:
    """lam of the read position in context: [queries, layers, heads]."""
    found = bench.in_context.extras.get("demo_mass")
    if found is None:  # no metric asked for it
        found = bench.after(bench.prefix, frozenset({"mass"})).trace.extras["demo_mass"]
    return found
