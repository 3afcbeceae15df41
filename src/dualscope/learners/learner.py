"""What a learner is, and what it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isabstract
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from dualscope.choosing.halving import GRID, RATES, Choice, Rounds, Settings, choose
from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.core.registry import Colour, Description, Mark, Registry
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import Family, Role
from dualscope.descent.changes_of_draws import DrawsChange
from dualscope.descent.delta import Delta
from dualscope.descent.dual_records import Log
from dualscope.models.reading.footprint import TrainingDemand
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

O = TypeVar("O", bound=Options)  # noqa: E741


class Change(Protocol):
    """What a learner changed in a model: its weights (`Delta`), or a vector that it adds somewhere."""

    def applied(self, model: Model) -> AbstractContextManager[None]:
        """The model changed inside ``with``, and as before afterwards."""
        ...

    def randomised(self, seed: int, draw: int) -> Change:
        """A random change of the same norms."""
        ...


@dataclass(frozen=True)
class Learned:
    """A learner's result: what it left at every query, what it changed, and how the learning went.

    >>> from dualscope import compare
    >>> learned = compare("embedded", "embedded-sst2", "gd", shots=4, queries=6).learned["gd"]
    >>> learned.trace.predictions.shape, learned.delta["layers.0.key.weight"].shape
    (torch.Size([6]), torch.Size([192, 192]))
    """

    trace: Trace
    change: Change | None = None
    log: Log = field(default_factory=Log)
    shots_used: int | None = None  # where these were not the lesson's own demonstrations
    again: Callable[[Lesson], Trace] | None = None  # all its passes once more, on some queries: for the noise
    by_context: bool = False  # what changed is what stands before the queries
    predictions_only: bool = False  # the attention is the untouched model's
    one_layer: bool = False  # it acts at one layer: attention changes above it only
    of_queries: bool = False  # what changed is known for the lesson's own queries alone
    choice: Choice | None = None  # how open settings were chosen, where the learner did it itself
    is_rounding: bool = False  # by construction nothing changes: what is seen of it is rounding
    notes: tuple[str, ...] = ()  # what was given up because memory is short

    @property
    def delta(self) -> Delta | None:
        """The change of the weights, where they are what changed."""
        return self.change if isinstance(self.change, Delta) else None


@dataclass(frozen=True)
class LearnedDraws:
    """A learner's results on several draws that it learned from at once."""

    traces: tuple[Trace, ...]  # one a draw
    change: DrawsChange | None = None
    log: Log = field(default_factory=Log)  # its tensors have the draws before the layers
    notes: tuple[str, ...] = ()  # what was given up because memory is short


@dataclass(frozen=True)
class Reread:
    """Zero-shot and a learner once more, on some queries, with sums in another order: how far rounding reaches."""

    zero_shot: Trace
    trace: Trace

    def only(self, queries: Collection[str]) -> Reread | None:
        """Those of them that are among these; None where none is."""
        kept = [i for i, query in enumerate(self.trace.query_ids) if query in queries]
        ids = tuple(self.trace.query_ids[i] for i in kept)

        def cut(trace: Trace) -> Trace:
            return replace(trace.map(lambda tensor: tensor[kept]), query_ids=ids)

        return Reread(cut(self.zero_shot), cut(self.trace)) if kept else None


@dataclass(frozen=True)
class Result:
    """A learner's result, with its spec and its role."""

    learning: LearnerSpec
    role: Role
    learned: Learned

    @property
    def trace(self) -> Trace:
        return self.learned.trace


class Learner(ABC, Generic[O]):
    """A way to learn from demonstrations. Subclasses are registered by name and have no state.

    It takes all that it is taught from ``bench.lesson``, so that it can be run under any control.

    One of your own, in a notebook or a file for ``--plugin``:

    >>> from dualscope import LEARNERS, Learner, compare
    >>> @LEARNERS.register("first-alone")
    ... class FirstAlone(Learner):
    ...     \"\"\"One line that `dualscope list learners` shows.\"\"\"
    ...
    ...     def learn(self, bench, lr, options):
    ...         lesson, first = bench.lesson, bench.lesson.demonstrations[0]
    ...         shown = (*lesson.bos, *first.prompt, *first.label, *lesson.separator)
    ...         return bench.after(shown, bench.context_want)
    >>> "first-alone" in compare("embedded", "embedded-sst2", "first-alone", shots=4, queries=6).traces
    True
    >>> LEARNERS.remove("first-alone")
    """

    name: ClassVar[str] = ""  # set by the registry's decorator below
    title: ClassVar[str] = ""  # what sentences call it; its name where nothing is said
    colour: ClassVar[Colour | None] = None  # in charts; one of the others where nothing is said
    mark: ClassVar[Mark | None] = None  # in charts
    decides: ClassVar[str | None] = None  # of a null that always decides in the verdict: what it takes away, in a word
    ranked: ClassVar[bool] = True  # whether it stands beside other ceilings
    role: ClassVar[Role] = "hypothesis"  # its part in the question, see the vocabulary
    options: ClassVar[type[Options]] = Options
    needs_lr: ClassVar[bool] = False  # a learning rate has to be given (or chosen)
    family: ClassVar[Family | None] = None  # what kind of mechanism it proposes; None: one of its own
    can_be_planted: ClassVar[bool] = True  # the model that it changed can be read after any context
    changes_model: ClassVar[bool] = True  # weights or activations; else there is no random update of its size

    @classmethod
    def description(cls) -> Description:
        """What it says of itself for people."""
        return Description(cls.title or cls.name, cls.colour, cls.mark, cls.decides, cls.ranked)

    @abstractmethod
    def learn(self, bench: Bench, lr: float | None, options: O) -> Learned:
        """Learn from ``bench.lesson``, and leave the trace of its queries. The model is as before afterwards."""

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: O) -> LearnedDraws | None:
        """Learn from several lessons at once: draws of an intervention, which ask the same queries of the same model.

        The traces are those that `learn` leaves on each, but for rounding. None where they are learned from one by one.
        """
        return None

    @property
    def learns_draws(self) -> bool:
        """Whether `learn_draws` speaks of this learner's own `learn`, and not of that of a class it is made from."""
        owners = [next(kind for kind in type(self).__mro__ if name in vars(kind)) for name in ("learn", "learn_draws")]
        return issubclass(owners[1], owners[0])

    def read(self, bench: Bench, change: Change, options: O, few: bool = False) -> Trace:
        """The queries (or the few that are read twice), with a change of the kind that this learner makes."""
        with change.applied(bench.model):
            return bench.model.read(bench.few) if few else bench.model.read(bench.lesson, want=bench.read_want)

    # What is left open is chosen on spare training examples: the learning rate of those that need one, and options.

    open: ClassVar[tuple[str, ...]] = ()  # options that are chosen where none is given

    def is_open(self, options: O) -> bool:
        """Whether options are left open."""
        return any(getattr(options, name) is None for name in self.open)

    def candidates(self, model: Model, options: O) -> list[Settings]:
        """What may be chosen, all combinations: options that are open, and ``lr`` where a rate is needed."""
        return [{"lr": lr} for lr in GRID]

    def rounds(self, options: O) -> Rounds:
        """On how many examples candidates are tried, and which part of them goes on."""
        return RATES if self.needs_lr else Rounds()

    def materials(self, options: O) -> int:
        """How many spare examples the learner itself reads: others are asked."""
        return 0

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: O) -> Iterable[Tensor]:
        """The queries' label log-probabilities, [queries, classes], that each candidate leaves on a bench."""
        for candidate in candidates:
            own = dict(candidate)
            lr = own.pop("lr") if self.needs_lr else None
            # A bench of its own each time, so that no trace is kept.
            yield self.learn(bench.asking(bench.lesson), lr, options.model_copy(update=own)).trace.label_logprobs

    def choose(self, benches: Sequence[Bench], options: O) -> Choice:
        """The best candidate over the benches of several seeds."""
        attempts = partial(self.attempts, options=options)
        candidates = self.candidates(benches[0].model, options)
        return choose(benches, candidates, attempts, self.rounds(options), self.materials(options))

    def training(self, options: O) -> TrainingDemand | None:
        """How it trains the model, for estimates of memory; None where it does not. What is open counts as the most."""
        return TrainingDemand() if self.needs_lr else None

    def needs_other(self, options: O) -> bool:
        """Whether the bench has to hold a lesson of another task."""
        return False

    def given_lr(self, lr: float | None) -> float:
        """The learning rate, or an error that says how to give one."""
        if lr is None:
            raise InputError(f"the learner '{self.name}' needs a learning rate: give --lr 0.1, or --lr auto")
        if not lr > 0:
            raise InputError(f"the learning rate of '{self.name}' is {lr}; it has to be above 0")
        return lr


class _Learners(Registry[type[Learner[Any]]]):
    """Learners know their own name, because their errors and logs speak of it."""

    def add(self, name: str, item: type[Learner[Any]], aliases: tuple[str, ...] = ()) -> type[Learner[Any]]:
        if "/" in name:
            raise InputError(f"learner '{name}': what stands behind a slash is a control; choose a name without one")
        if isabstract(item):
            raise InputError(f"learner '{name}' has no method learn(bench, lr, options)")
        super().add(name, item, aliases)
        item.name = name
        return item


LEARNERS = _Learners("learner")
"""Every learner by its name (and aliases); ``LEARNERS.register`` adds one.

>>> from dualscope import LEARNERS
>>> LEARNERS["ft"] is LEARNERS["gd"], LEARNERS["gd"].needs_lr
(True, True)
"""
