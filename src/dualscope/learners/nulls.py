"""Learners that are taught nothing, or the wrong thing: what a similarity is worth without the claim."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field

from dualscope.descent.delta import Delta
from dualscope.learners.altered_lessons import relabelled
from dualscope.learners.gd import gd_step
from dualscope.learners.gradient import DescentOptions, descend
from dualscope.learners.learner import LEARNERS, Learned, Learner, Log, Options

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.tasks.lesson import Lesson


class NullContextOptions(Options):
    kind: Literal["unlabelled", "scrambled", "other-task"] = Field(
        "unlabelled", description="demonstrations without labels, their tokens shuffled, or another task's"
    )


@LEARNERS.register("null-context")
class NullContext(Learner[NullContextOptions]):
    """A context of exactly the same length that does not teach the task."""

    role = "null"
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
            context = borrowed(lesson, bench.other)
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
        context += (
            tuple(islice(mixed, len(demonstration.prompt) + len(demonstration.label))) + lesson.separator
        )
    return context


def borrowed(lesson: Lesson, other: Lesson) -> tuple[int, ...]:
    """Another task's demonstrations, repeated or cut at the front to the same length."""
    length = len(lesson.context) - len(lesson.bos)
    backwards = other.context[len(other.bos) :][::-1]
    return lesson.bos + tuple(islice(cycle(backwards), length))[::-1]


@LEARNERS.register("gd-random-labels")
class GdRandomLabels(Learner[DescentOptions]):
    """GD on the same demonstrations with random labels."""

    role = "null"
    options = DescentOptions
    needs_rate = True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        return descend(bench, relabelled(bench.lesson), self.rate(lr), options, gd_step)


@LEARNERS.register("gd-other-task")
class GdOtherTask(Learner[DescentOptions]):
    """GD on another task's demonstrations."""

    role = "null"
    options = DescentOptions
    needs_rate = True

    def needs_other(self, options: DescentOptions) -> bool:
        return True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        training = bench.other.training
        learned = descend(bench, training, self.rate(lr), options, gd_step)
        return replace(learned, shots_used=len(training))


class RandomUpdateOptions(DescentOptions):
    draw: int = Field(0, ge=0, description="which random draw")


@LEARNERS.register("random-update")
class RandomUpdate(Learner[RandomUpdateOptions]):
    """A random change of the weights that GD changes, in every layer of the same norm as GD's."""

    role = "null"
    options = RandomUpdateOptions
    needs_rate = True
    has_direct = False

    def learn(self, bench: Bench, lr: float | None, options: RandomUpdateOptions) -> Learned:
        gd = bench.learned("gd", self.rate(lr), **options.model_dump(exclude={"draw"}))
        assert gd.delta is not None
        delta = random_like(gd.delta, bench.lesson.episode.seed, options.draw)
        with delta.applied(bench.model):
            trace = bench.model.read(bench.lesson, want=bench.read_want)
        return Learned(trace, delta, Log(update_norm=gd.log.update_norm))


def random_like(delta: Delta, seed: int, draw: int = 0) -> Delta:
    """Gaussian, each layer rescaled to the norm that ``delta`` has there. The same on every device."""
    state = int(np.random.SeedSequence([seed, 4, draw]).generate_state(1)[0])
    generator = torch.Generator().manual_seed(state)
    noise = Delta(
        {
            name: torch.randn(c.shape, generator=generator, dtype=c.dtype).to(c.device)
            for name, c in delta.items()
        }
    )
    return noise.with_norms(delta.norms())
