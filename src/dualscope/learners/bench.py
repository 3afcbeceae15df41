"""A model and a lesson, with what every learner shares computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dualscope.core.errors import InputError
from dualscope.descent.direct_effect import direct_attn_out
from dualscope.learners.learner import LEARNERS, Learned, Options, Reread
from dualscope.models.doctor import assure, check_tokens
from dualscope.models.reading.other_order import other_order
from dualscope.models.reading.prefix import Prefix
from dualscope.models.trace import Trace

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

REREAD_QUERIES, REREAD_BATCH = 10, 5  # for the signal to noise: a few queries, at an unusual batch size
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
        if zero_shot is not None:
            self.zero_shot = zero_shot
        self._learned: dict[tuple[str, float | None, Options], Learned] = {}

    @property
    def read_want(self) -> frozenset[str]:
        """What is asked of the reading when there is no context."""
        more = {"query_vectors", "layer_inputs"} if "kendall" in self.want else set()
        return (self.want - _RECORDS) | more

    @property
    def context_want(self) -> frozenset[str]:
        """What is asked of the reading after a context."""
        return self.read_want | ({"context_scores"} if "kendall" in self.want else set())

    @cached_property
    def zero_shot(self) -> Trace:
        return self.model.read(self.lesson, want=self.read_want)

    @cached_property
    def prefix(self) -> Prefix:
        assure(self.model, self.lesson)
        return self.model.prefix(self.lesson.context)

    @cached_property
    def in_context(self) -> Trace:
        return self.model.read(self.lesson, self.prefix, want=self.context_want)

    def after(self, context: Sequence[int], want: frozenset[str], shots_used: int | None = None) -> Learned:
        """What reading the queries after a context leaves that is not the lesson's own."""
        trace = self.model.read(self.lesson, self.model.prefix(context), want=want)
        return Learned(trace, shots_used=shots_used, again=self.reading_after(context))

    def reading_after(self, context: Sequence[int]) -> Callable[[Lesson], Trace]:
        """Some queries after a context that is encoded anew."""
        return lambda lesson: self.model.read(lesson, self.model.prefix(context), batch_size=REREAD_BATCH)

    def reread(self, learned: Learned) -> Reread | None:
        """The first queries of zero-shot and of a learner, in another order of summation.

        None where the model itself has not changed and was not read in a way of the learner's own.
        """
        if learned.again is None and learned.delta is None:
            return None
        with other_order(self.model):
            if learned.again is not None:
                return Reread(self.zero_shot_again, learned.again(self.few))
            assert learned.delta is not None
            with learned.delta.applied(self.model):
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

    @property
    def other(self) -> Lesson:
        if self._other is None:
            raise InputError("a lesson of another task is needed; give a study at least two tasks")
        return self._other

    def learned(self, name: str, lr: float | None = None, **options: object) -> Learned:
        """The result of a learner, computed once for the same rate and options."""
        learner = LEARNERS[name]()
        settings = options_of(name, options)
        key = (learner.name, lr if learner.needs_rate else None, settings)
        if key not in self._learned:
            self._learned[key] = learner.learn(self, lr, settings)
            if learner.has_direct:
                self._add_direct(self._learned[key])
        return self._learned[key]

    def forget(self, name: str, lr: float | None = None, **options: object) -> None:
        """Let go of a result that nobody will ask for again: a sweep over rates would keep all its traces."""
        rate = lr if LEARNERS[name].needs_rate else None
        self._learned.pop((LEARNERS.canonical(name), rate, options_of(name, options)), None)

    def _add_direct(self, learned: Learned) -> None:
        delta = learned.delta
        if "direct" in self.want and delta is not None and all(name.startswith("layers.") for name in delta):
            learned.trace.extras["direct_attn_out"] = direct_attn_out(self.model, self.lesson, delta)


def options_of(name: str, options: dict[str, object]) -> Options:
    """A learner's options, checked; an error names the learner, the option and what is accepted.

    >>> options_of("gd", {"epochs": 2}).changed()
    {'epochs': 2}
    >>> options_of("gd", {"epoch": 2})
    Traceback (most recent call last):
    dualscope.core.errors.InputError: learner 'gd': option 'epoch': extra inputs are not permitted, found 2. ...
    """
    kind = LEARNERS[name].options
    try:
        return kind(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(word) for word in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise InputError(
            f"learner '{LEARNERS.canonical(name)}': option '{where}': {message}, found {first['input']!r}. "
            f"Accepted options: {', '.join(kind.model_fields) or 'none'}."
        ) from None
