"""Zero-shot and in-context: where every change is measured from, and what it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("zero-shot", "zsl")
class ZeroShot(Learner[Options]):
    """BOS and the query: where every change is measured from."""

    role = "baseline"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        return Learned(bench.model.read(bench.lesson, want=bench.read_want))


@LEARNERS.register("in-context", "icl")
class InContext(Learner[Options]):
    """BOS, every demonstration and a separator, then the query."""

    role = "reference"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        return bench.after(bench.prefix, bench.context_want)
