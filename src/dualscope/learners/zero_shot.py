"""Nothing is learned: the query alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualscope.learners.learner import LEARNERS, Learned, Learner, Options

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.trace import Trace
    from dualscope.tasks.lesson import Lesson


@LEARNERS.register("zero-shot", "zsl")
class ZeroShot(Learner[Options]):
    """BOS and the query: where every change is measured from."""

    role = "baseline"

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        return Learned(bench.zero_shot)


@LEARNERS.register("zero-shot-offset")
class ZeroShotOffset(Learner[Options]):
    """No context, but BOS and query moved to where the query stands in context: what position alone does."""

    role = "null"

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        lesson = bench.lesson
        offset = len(lesson.context) - len(lesson.bos)

        def again(lesson: Lesson) -> Trace:
            return bench.model.read(lesson, position_offset=offset)

        return Learned(bench.model.read(lesson, want=bench.read_want, position_offset=offset), again=again)
