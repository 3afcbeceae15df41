"""A bench and its shortened forms, with the last results of scrubbing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT, LearnerSpec
from dualscope.learners.bench import Bench
from dualscope.learners.learner import LEARNERS
from dualscope.models.reading.parity import assure

if TYPE_CHECKING:
    from dualscope.tasks.lesson import Lesson

WORTH_KEEPING = 2e9  # tokens x parameters of a context's beginning: some 50 ms on two cores
KEPT = 48  # results: a slider goes back and forth
WATCHED = frozenset({"attention", "dual", "layer_inputs"})  # what looking at words needs


@dataclass
class BenchCache:
    """Where one screen's lesson is learned, whole or up to a step."""

    bench: Bench
    earlier: Bench | None = None  # the screen before this one
    shortened: dict[int, Bench] = field(default_factory=dict)
    recent: OrderedDict[tuple[LearnerSpec, int | None], None] = field(default_factory=OrderedDict)
    untrained: BenchCache | None = None  # the same lesson on untrained weights
    _watched: BenchCache | None = None

    def bench_for(self, learning: LearnerSpec, steps: int | None) -> Bench:
        """Where a learner learns: a gradient learner on the first ``steps`` demonstrations, others on all."""
        if learning != ZERO_SHOT:  # which answers at once
            self._take_over()
        taught = len(self.bench.lesson.training)
        cut = steps if LEARNERS[learning.name].needs_lr and steps is not None and steps < taught else None
        self.recent[learning, cut] = None
        self.recent.move_to_end((learning, cut))
        while len(self.recent) > KEPT:
            (old, old_cut), _ = self.recent.popitem(last=False)
            self._after(old_cut).forget(old)
        return self._after(cut)

    def watched(self) -> BenchCache:
        """The same lesson on a bench that also records every weight of attention and the update's dual form."""
        if self._watched is None:
            bench = Bench(self.bench.model, self.bench.lesson, want=WATCHED)
            if self.bench.is_encoded:
                bench.prefix = self.bench.prefix
            self._watched = BenchCache(bench)
        return self._watched

    def _after(self, steps: int | None) -> Bench:
        if steps is None:
            return self.bench
        if steps not in self.shortened:
            self.shortened[steps] = FirstSteps(self.bench, steps)
        return self.shortened[steps]

    def _take_over(self) -> None:
        """What an earlier screen has computed and this one shares: the beginning of the context.

        Continued sums round otherwise in their last digits than whole ones do, so this is done where it saves
        something that can be felt.
        """
        known, self.earlier = self.earlier, None
        if known is None or not known.is_encoded or self.bench.is_encoded:
            return
        model, context = self.bench.model, self.bench.lesson.context
        if known.prefix.shared_with(context) * model.hf.num_parameters() >= WORTH_KEEPING:
            assure(model, self.bench.lesson)
            self.bench.prefix = model.prefix(context, known.prefix)


class FirstSteps(Bench):
    """Gradient learners are taught the first demonstrations alone; the context holds all of them.

    SGD takes one demonstration a step, so this is where it stands after so many steps.
    """

    def __init__(self, whole: Bench, steps: int) -> None:
        lesson = replace(whole.lesson, training=whole.lesson.training[:steps])
        super().__init__(whole.model, lesson, whole.want, zero_shot=whole.zero_shot)
        self.steps = steps
        self.keep(IN_CONTEXT, whole.result(IN_CONTEXT).learned)
        self.prefix = whole.prefix

    def with_lesson(self, lesson: Lesson) -> Bench:
        """Under a control too."""
        return super().with_lesson(replace(lesson, training=lesson.training[: self.steps]))


def same_queries(one: Lesson, other: Lesson) -> bool:
    """Whether zero-shot reads the same in both."""
    return (one.bos, one.queries, one.answers, one.labels) == (other.bos, other.queries, other.answers, other.labels)
