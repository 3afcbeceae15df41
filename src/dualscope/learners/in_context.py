"""In-context learning: the demonstrations in the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualscope.learners.learner import LEARNERS, Learned, Learner, Options

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("in-context", "icl")
class InContext(Learner[Options]):
    """BOS, every demonstration and a separator, then the query."""

    role = "reference"

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        return Learned(bench.in_context, again=bench.reading_after(bench.lesson.context))
