"""The same learner once more, from other demonstrations or in another order: how alike can anything be?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from dualscope.learners.altered_lessons import redrawn, reordered
from dualscope.learners.gd import gd_step
from dualscope.learners.gradient import DescentOptions, descend
from dualscope.learners.learner import LEARNERS, Learned, Learner, Options

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.tasks.lesson import Lesson


class AgainOptions(Options):
    draw: int = Field(1, ge=1, description="which other draw, or which other order")


class GdAgainOptions(DescentOptions):
    draw: int = Field(1, ge=1, description="which other draw, or which other order")


@LEARNERS.register("in-context-redraw", "icl-redraw")
class InContextRedraw(Learner[AgainOptions]):
    """In-context learning from another draw of demonstrations."""

    role = "ceiling"
    options = AgainOptions

    def learn(self, bench: Bench, lr: float | None, options: AgainOptions) -> Learned:
        return _in_context(bench, redrawn(bench.lesson, bench.model, options.draw))


@LEARNERS.register("in-context-reorder", "icl-reorder")
class InContextReorder(Learner[AgainOptions]):
    """In-context learning from the same demonstrations in another order."""

    role = "ceiling"
    options = AgainOptions

    def learn(self, bench: Bench, lr: float | None, options: AgainOptions) -> Learned:
        return _in_context(bench, reordered(bench.lesson, options.draw))


def _in_context(bench: Bench, lesson: Lesson) -> Learned:
    return bench.after(lesson.context, bench.read_want, lesson.shots_used)


@LEARNERS.register("gd-redraw")
class GdRedraw(Learner[GdAgainOptions]):
    """GD on another draw of demonstrations."""

    role = "ceiling"
    options = GdAgainOptions
    needs_rate = True

    def learn(self, bench: Bench, lr: float | None, options: GdAgainOptions) -> Learned:
        training = redrawn(bench.lesson, bench.model, options.draw).training
        learned = descend(bench, training, self.rate(lr), options, gd_step)
        return replace(learned, shots_used=len(training))


@LEARNERS.register("gd-reorder")
class GdReorder(Learner[GdAgainOptions]):
    """GD on the same demonstrations in another order."""

    role = "ceiling"
    options = GdAgainOptions
    needs_rate = True

    def learn(self, bench: Bench, lr: float | None, options: GdAgainOptions) -> Learned:
        training = reordered(bench.lesson, options.draw).training
        return descend(bench, training, self.rate(lr), options, gd_step)
