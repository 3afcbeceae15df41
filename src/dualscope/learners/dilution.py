"""What softmax takes away when it attends to demonstrations, and nothing in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.learners.bench import Bench
    from dualscope.models.trace import Trace
    from dualscope.tasks.lesson import Lesson


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
