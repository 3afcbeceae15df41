"""A model and a lesson, with what every learner shares computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError
from dualscope.core.learning import IN_CONTEXT, ZERO_SHOT, Learning
from dualscope.descent.direct_effect import direct_attn_out
from dualscope.learners.controls import COMBINATORS, identify, role_of, settings_of
from dualscope.learners.learner import LEARNERS, Learned, Reread, Result
from dualscope.models.hardware import total_memory
from dualscope.models.parity import assure, check_tokens
from dualscope.models.reading.other_order import other_order
from dualscope.models.reading.prefix import Prefix
from dualscope.models.trace import Trace

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

REREAD_QUERIES, REREAD_BATCH = 10, 5  # for the signal to noise: a few queries, at an unusual batch size
KEPT = 1 / 8  # of a device's memory, for the changes that learners have made
_RECORDS = frozenset({"kendall", "dual", "direct"})  # what learners add; all else is asked of the reading


class Bench:
    """Where learners are put to work.

    ``want`` asks for more than the default: what `Model.read` offers (``exits``, ``mass``, ``layer_inputs``,
    ``query_vectors``, ``context_scores``), ``kendall`` (all that the Kendall metrics look at, of traces and of the
    training), ``dual`` (the dual form of the update) and ``direct`` (`direct_attn_out` among a trace's extras,
    where keys and values alone changed). ``other`` is a lesson of another task, for the learners
    that are taught the wrong thing on purpose. A zero-shot trace that is known already can be handed in.
    """

    def __init__(
        self,
        model: Model,
        lesson: Lesson,
        want: frozenset[str] = frozenset(),
        zero_shot: Trace | None = None,
        other: Lesson | None = None,
    ) -> None:
        check_tokens(model, lesson)
        self.model, self.lesson, self.want, self._other = model, lesson, want, other
        self._learned: dict[Learning, Learned] = {}
        if zero_shot is not None:
            self._learned[ZERO_SHOT] = Learned(zero_shot)

    @property
    def read_want(self) -> frozenset[str]:
        """What is asked of the reading when there is no context."""
        more = {"query_vectors", "layer_inputs"} if "kendall" in self.want else set()
        return (self.want - _RECORDS) | more

    @property
    def context_want(self) -> frozenset[str]:
        """What is asked of the reading after a context."""
        return self.read_want | ({"context_scores"} if "kendall" in self.want else set())

    @property
    def zero_shot(self) -> Trace:
        return self.result(ZERO_SHOT).trace

    @property
    def in_context(self) -> Trace:
        return self.result(IN_CONTEXT).trace

    @cached_property
    def prefix(self) -> Prefix:
        """The lesson's own context, encoded once."""
        assure(self.model, self.lesson)
        return self.model.prefix(self.lesson.context)

    def after(self, context: Sequence[int] | Prefix, want: frozenset[str]) -> Learned:
        """What reading the queries after a context leaves."""
        prefix = context if isinstance(context, Prefix) else self.model.prefix(context)
        tokens = self.lesson.context if isinstance(context, Prefix) else context
        trace = self.model.read(self.lesson, prefix, want=want)
        return Learned(trace, again=self.reading_after(tokens), by_context=True)

    def reading_after(self, context: Sequence[int]) -> Callable[[Lesson], Trace]:
        """Some queries after a context that is encoded anew."""
        return lambda lesson: self.model.read(lesson, self.model.prefix(context), batch_size=REREAD_BATCH)

    def reread(self, learned: Learned) -> Reread | None:
        """The first queries of zero-shot and of a learner, in another order of summation.

        None where the model itself has not changed and was not read in a way of the learner's own.
        """
        if learned.again is None and learned.change is None:
            return None
        with other_order(self.model):
            if learned.again is not None:
                return Reread(self.zero_shot_again, learned.again(self.few))
            assert learned.change is not None
            with learned.change.applied(self.model):
                trace = self.model.read(self.few, batch_size=REREAD_BATCH)
            return Reread(self.zero_shot_again, trace)

    @cached_property
    def few(self) -> Lesson:
        """The lesson with the first queries alone."""
        lesson, first = self.lesson, slice(0, REREAD_QUERIES)
        return replace(
            lesson,
            queries=lesson.queries[first],
            labels=lesson.labels[first],
            query_ids=lesson.query_ids[first],
        )

    @cached_property
    def zero_shot_again(self) -> Trace:
        with other_order(self.model):
            return self.model.read(self.few, batch_size=REREAD_BATCH)

    def with_lesson(self, lesson: Lesson) -> Bench:
        """A bench of the same model and queries where other things are taught."""
        if lesson.query_ids != self.lesson.query_ids:
            raise InputError("a lesson that is altered has to ask the same queries")
        return Bench(self.model, lesson, self.want, zero_shot=self.zero_shot, other=self._other)

    @property
    def other(self) -> Lesson:
        if self._other is None:
            raise InputError("a lesson of another task is needed; give a study at least two tasks")
        return self._other

    def learned(
        self, name: str, lr: float | None = None, control: str | None = None, **options: Any
    ) -> Learned:
        """The result of a learner, computed once for the same control, rate and options.

        ``bench.learned("gd", 0.1, control="random-labels", epochs=2)``
        """
        return self.result(identify(name, options, control, lr)).learned

    def result(self, learning: Learning) -> Result:
        """The same, of a learner that is identified already."""
        learning = self._without_idle_rate(learning)
        if learning not in self._learned:
            self._make_room()
            self._learned[learning] = self._learn(learning)
        return Result(learning, role_of(learning), self._learned[learning])

    def keep(self, learning: Learning, learned: Learned) -> None:
        """Take over a result that is known from elsewhere."""
        self._learned[learning] = learned

    def forget(self, learning: Learning) -> None:
        """Let go of a result that nobody will ask for again: a sweep over rates would keep all its traces."""
        if learning not in (ZERO_SHOT, IN_CONTEXT):
            self._learned.pop(self._without_idle_rate(learning), None)

    def _learn(self, learning: Learning) -> Learned:
        learner = LEARNERS[learning.name]()
        options, own = settings_of(learning.name, learning.control, learning.settings)
        if learning.control is None:
            learned = learner.learn(self, learning.rate, options)
        else:
            learned = COMBINATORS[learning.control]().learn(self, learner, learning.rate, options, own)
        # The direct part of a random change would say nothing.
        if learning.control != "random-update":
            self._add_direct(learned)
        return learned

    @staticmethod
    def _without_idle_rate(learning: Learning) -> Learning:
        """A rate given to a learner that has no use for one does not make it another learner."""
        if learning.rate is None or LEARNERS[learning.name].needs_rate:
            return learning
        return Learning(learning.name, learning.control, learning.options)

    def _make_room(self) -> None:
        """Changes of weights that are only kept go to the CPU where they would fill much of the device."""
        device = self.model.device
        kept = {key: one.delta for key, one in self._learned.items() if one.delta is not None}
        held = sum(c.nbytes for delta in kept.values() for c in delta.values() if c.device.type != "cpu")
        if held > KEPT * total_memory(device):
            for key, delta in kept.items():
                self._learned[key] = replace(self._learned[key], change=delta.to("cpu"))

    def _add_direct(self, learned: Learned) -> None:
        delta = learned.delta
        if "direct" in self.want and delta is not None and all(name.startswith("layers.") for name in delta):
            learned.trace.extras["direct_attn_out"] = direct_attn_out(self.model, self.lesson, delta)
