"""In-context learning from other demonstrations, judged as if it were a hypothesis: what the verdict has to call above.

dualscope run benchmarks/studies/again-21m.yaml --plugin benchmarks/again.py --model MODELS/realtext-21m --data DATA
"""

from __future__ import annotations

from dualscope import LEARNERS, Learned, Learner
from dualscope.learners import Bench, Options
from dualscope.learners.altered_lessons import redrawn, relabelled
from dualscope.tasks import Lesson


@LEARNERS.register("in-context-again")
class InContextAgain(Learner[Options]):
    """In-context learning from another draw of demonstrations; under random labels, from that draw with those."""

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        home = bench.unaltered
        taught = redrawn(home.lesson, home.model)
        if bench is not home:
            same = _shown(bench.lesson) == _shown(home.lesson)
            # Another task's demonstrations are another draw already.
            taught = relabelled(taught, home.model.max_positions) if same else bench.lesson
        return home.with_lesson(taught).learned("in-context")


def _shown(lesson: Lesson) -> list[str]:
    return [demonstration.id for demonstration in lesson.demonstrations]
