"""A bench and its shortened forms, with the last results of scrubbing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dualscope.core.learning import IN_CONTEXT, Learning
from dualscope.models.parity import assure

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Learned
    from dualscope.tasks.lesson import Lesson

KEPT = 48  # results of one desk: a slider goes back and forth


@dataclass
class Desk:
    """Where one screen's lesson is learned, whole or up to a step."""

    bench: Bench
    earlier: Bench | None = None  # the screen before this one
    shortened: dict[int, Bench] = field(default_factory=dict)
    _watched: Desk | None = None
    recent: OrderedDict[tuple[str, float | None, int | None], None] = field(default_factory=OrderedDict)

    def learned(self, name: str, rate: float, steps: int | None) -> tuple[Bench, Learned]:
        """What a learner makes of the lesson; of a gradient learner, after ``steps`` of its demonstrations."""
        from dualscope.learners import LEARNERS

        if LEARNERS[name].role != "baseline":  # zero-shot answers at once
            self._take_over()
        needs = LEARNERS[name].needs_rate
        steps = steps if needs and steps is not None and steps < len(self.bench.lesson.training) else None
        lr, bench = rate if needs else None, self.after(steps)
        self.recent[name, lr, steps] = None
        self.recent.move_to_end((name, lr, steps))
        while len(self.recent) > KEPT:
            (old, old_lr, old_steps), _ = self.recent.popitem(last=False)
            self.after(old_steps).forget(Learning(old, rate=old_lr))
        return bench, bench.learned(name, lr)

    def watched(self) -> Desk:
        """The same lesson on a bench that also records every weight of attention and the update's dual form."""
        from dualscope.explorer.words import WANT
        from dualscope.learners.bench import Bench

        if self._watched is None:
            bench = Bench(self.bench.model, self.bench.lesson, want=WANT)
            if "prefix" in self.bench.__dict__:
                bench.prefix = self.bench.prefix
            self._watched = Desk(bench)
        return self._watched

    def after(self, steps: int | None) -> Bench:
        """SGD takes one demonstration a step, so its k-th step is where it arrives when taught the first k."""
        from dualscope.learners.bench import Bench

        if steps is None:
            return self.bench
        if steps not in self.shortened:
            whole = self.bench
            lesson = replace(whole.lesson, training=whole.lesson.training[:steps])
            short = Bench(whole.model, lesson, want=whole.want, zero_shot=whole.zero_shot)
            short.prefix = whole.prefix  # the context holds all demonstrations
            short.keep(IN_CONTEXT, whole.result(IN_CONTEXT).learned)
            self.shortened[steps] = short
        return self.shortened[steps]

    def _take_over(self) -> None:
        """What an earlier screen has computed and this one shares: the beginning of the context."""
        known, self.earlier = self.earlier, None
        if known is not None and "prefix" in known.__dict__ and "prefix" not in self.bench.__dict__:
            assure(self.bench.model, self.bench.lesson)
            self.bench.prefix = self.bench.model.prefix(self.bench.lesson.context, known.prefix)


def same_queries(one: Lesson, other: Lesson) -> bool:
    """Whether zero-shot reads the same in both."""
    return (one.bos, one.queries, one.answers, one.labels) == (
        other.bos,
        other.queries,
        other.answers,
        other.labels,
    )
