"""What a learner is, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.core.registry import Registry
from dualscope.core.words import Role
from dualscope.descent.log import Log
from dualscope.models.trace import Trace

if TYPE_CHECKING:
    from dualscope.descent.delta import Delta
    from dualscope.learners.bench import Bench
    from dualscope.tasks.lesson import Lesson


O = TypeVar("O", bound=Options)  # noqa: E741


@dataclass(frozen=True)
class Learned:
    """A learner's result: what it left at every query, how the weights changed, and how the learning went."""

    trace: Trace
    delta: Delta | None = None
    log: Log = field(default_factory=Log)
    shots_used: int | None = None  # where these were not the lesson's own demonstrations
    again: Callable[[Lesson], Trace] | None = (
        None  # all of its passes once more, on some queries: for the noise
    )


@dataclass(frozen=True)
class Reread:
    """Zero-shot and a learner once more, on some queries, with sums in another order: how far rounding reaches."""

    zero_shot: Trace
    trace: Trace


class Learner(Generic[O]):
    """A way to learn from demonstrations. Subclasses are registered by name and have no state.

    A learner of your own, for ``--plugin``::

        @LEARNERS.register("my-learner")
        class MyLearner(Learner[Options]):
            \"\"\"One line that `dualscope list learners` shows.\"\"\"

            def learn(self, bench, lr, options):
                return Learned(bench.zero_shot)
    """

    name: ClassVar[str] = ""  # set by the registry's decorator below
    role: ClassVar[Role] = "hypothesis"  # what it is to the question
    options: ClassVar[type[Options]] = Options
    needs_rate: ClassVar[bool] = False  # a learning rate has to be given (or chosen)
    has_direct: ClassVar[bool] = (
        True  # the direct part of its change says something (of a random one it does not)
    )

    def learn(self, bench: Bench, lr: float | None, options: O) -> Learned:
        raise NotImplementedError

    def needs_other(self, options: O) -> bool:
        """Whether the bench has to hold a lesson of another task."""
        return False

    def rate(self, lr: float | None) -> float:
        """The learning rate, or an error that says how to give one."""
        if lr is None:
            raise InputError(f"the learner '{self.name}' needs a learning rate: give --lr 0.1, or --lr auto")
        if not lr > 0:
            raise InputError(f"the learning rate of '{self.name}' is {lr}; it has to be above 0")
        return lr


class _Learners(Registry[type[Learner]]):
    """Learners know their own name, because their errors and logs speak of it."""

    def add(self, name: str, item: type[Learner], aliases: tuple[str, ...] = ()) -> type[Learner]:
        super().add(name, item, aliases)
        item.name = name
        return item


LEARNERS = _Learners("learner")
