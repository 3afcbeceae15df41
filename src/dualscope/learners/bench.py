"""A model and a lesson, with what every learner shares computed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from dualscope.choosing.spare_examples import asking_first, spare_of
from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT, LearnerSpec
from dualscope.descent.direct_effect import direct_attn_out
from dualscope.learners.controls import COMBINATORS, identify, role_of, settings_of
from dualscope.learners.learner import LEARNERS, Learned, Learner, O, Reread, Result
from dualscope.models.architecture.parts import Part
from dualscope.models.loading.device_and_precision import total_memory
from dualscope.models.reading.parity import assure, check_tokens
from dualscope.models.reading.prefix import Prefix
from dualscope.models.reading.read import other_order
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.choosing.halving import Choice
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson
    from dualscope.tasks.mapping import Example

REREAD_QUERIES = 10  # a few, for the signal to noise
KEPT = 1 / 8  # of a device's memory, for the changes that learners have made
T = TypeVar("T")
_RECORDS = frozenset({"kendall", "dual", "direct"})  # what learners add; all else is asked of the reading


class Bench:
    """Where learners are put to work: what they share (zero-shot, the encoded context) is computed once.

    >>> from dualscope import Bench, Episode, Model, Task, make_lesson
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> lesson = make_lesson(Episode.draw(task, shots=4, queries=6), model.tokenizer, model.max_positions)
    >>> bench = Bench(model, lesson)
    >>> bench.learned("gd", 1.0, epochs=2).delta.norms().shape  # [layers]
    torch.Size([6])

    ``want`` asks for more than the default: what `Model.read` offers (``exits``, ``mass``, ``layer_inputs``,
    ``query_vectors``, ``context_scores``), ``kendall`` (all that the Kendall metrics look at, of traces and of the
    training), ``dual`` (the dual form of the update) and ``direct`` (`direct_attn_out` among a trace's extras,
    where keys and values alone changed). ``other`` is a lesson of another task, for the learners
    that are taught the wrong thing on purpose. A zero-shot trace that is known already can be handed in. ``spare`` are
    training examples that settings may be chosen on and ceilings fitted on: by default what the episode leaves over;
    ``chosen`` are settings that were chosen already, by learner and options (both as in `Cell.chosen`); ``trials``
    what a choice that takes long has tried already.

    Raises:
        InputError: The model does not know the lesson's tokens.
    """

    def __init__(
        self,
        model: Model,
        lesson: Lesson,
        want: frozenset[str] = frozenset(),
        zero_shot: Trace | None = None,
        other: Lesson | None = None,
        spare: Sequence[Example] | None = None,
        unaltered: Bench | None = None,
        chosen: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        check_tokens(model, lesson)
        self.model, self._given, self.want, self._other = model, lesson, want, other
        self._spare, self._unaltered, self._chosen = spare, unaltered, dict(chosen or {})
        self._once: dict[Hashable, Any] = {}
        self._learned: dict[LearnerSpec, Learned] = {}
        self._others: WeakSet[Bench] = WeakSet()  # made from this one
        if zero_shot is not None:
            self._learned[ZERO_SHOT] = Learned(zero_shot)

    @cached_property
    def lesson(self) -> Lesson:
        """What is taught and asked.

        Where next tokens are compared, in-context learning is read before all else: the tokens that it finds likeliest
        are those whose probability is noted of every learner.
        """
        given = self._given
        if "next_tokens" not in self.want or given.watched:
            return given
        self._learned[IN_CONTEXT] = learned = self._after(given, self.prefix, self.context_want)
        ids = learned.trace.extras["next_tokens"].tolist()
        return replace(given, watched=dict(zip(given.query_ids, map(tuple, ids), strict=True)))

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
        """The queries' trace without any demonstration."""
        return self.result(ZERO_SHOT).trace

    @property
    def in_context(self) -> Trace:
        """The queries' trace after the demonstrations."""
        return self.result(IN_CONTEXT).trace

    @property
    def is_encoded(self) -> bool:
        """Whether the context has been encoded already."""
        return "prefix" in vars(self)

    @cached_property
    def prefix(self) -> Prefix:
        """The lesson's own context, encoded once."""
        assure(self.model, self._given)
        return self.model.prefix(self._given.context)

    def after(self, context: Sequence[int] | Prefix, want: frozenset[str]) -> Learned:
        """What reading the queries after a context leaves."""
        return self._after(self.lesson, context, want)

    def _after(self, lesson: Lesson, context: Sequence[int] | Prefix, want: frozenset[str]) -> Learned:
        prefix = context if isinstance(context, Prefix) else self.model.prefix(context)
        tokens = lesson.context if isinstance(context, Prefix) else context
        trace = self.model.read(lesson, prefix, want=want)
        return Learned(trace, again=self.reading_after(tokens), by_context=True)

    def reading_after(self, context: Sequence[int]) -> Callable[[Lesson], Trace]:
        """Some queries after a context that is encoded anew."""
        model = self.model
        return lambda lesson: model.read(lesson, model.prefix(context))

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
                trace = self.model.read(self.few)
            return Reread(self.zero_shot_again, trace)

    @cached_property
    def few(self) -> Lesson:
        """The lesson with the first queries alone."""
        return self.lesson.only(range(min(REREAD_QUERIES, len(self.lesson.queries))))

    @cached_property
    def zero_shot_again(self) -> Trace:
        with other_order(self.model):
            return self.model.read(self.few)

    def with_lesson(self, lesson: Lesson) -> Bench:
        """A bench of the same model and queries where other things are taught."""
        if lesson.query_ids != self.lesson.query_ids:
            raise InputError("a lesson that is altered has to ask the same queries")
        altered = Bench(
            self.model,
            replace(lesson, watched=self.lesson.watched),
            self.want,
            zero_shot=self.zero_shot,
            other=self._other,
            spare=self.spare,
            unaltered=self.unaltered,
            chosen=self._chosen,
        )
        self._others.add(altered)
        return altered

    @property
    def unaltered(self) -> Bench:
        """The bench of the lesson itself, where this one's was altered by a control."""
        return self._unaltered or self

    def asking(self, lesson: Lesson) -> Bench:
        """A bench of the same model that asks something else."""
        bench = Bench(self.model, lesson, spare=self.spare)
        self._others.add(bench)
        return bench

    @property
    def seed(self) -> int:
        return self.lesson.episode.seed

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Something that several results of this bench are made from, computed once."""
        if key not in self._once:
            self._once[key] = make()
        found: T = self._once[key]
        return found

    def let_go(self, key: Hashable) -> None:
        """Forget what `once` keeps under a key."""
        self._once.pop(key, None)

    @cached_property
    def spare(self) -> Sequence[Example]:
        """Training examples that are neither demonstrations nor queries; see `dualscope.choosing.spare_examples`."""
        return spare_of(self.lesson, self.model) if self._spare is None else self._spare

    def materials(self, count: int, needed: str) -> Lesson:
        """The lesson's demonstrations before the first ``count`` spare examples; those alone a learner may read."""
        return asking_first(self.lesson, self.model, self.spare, count, needed)

    def chosen(self, learner: Learner[O], options: O) -> tuple[O, Choice | None]:
        """The learner's options with all that is left open chosen on spare examples, and how.

        Under a control the choice is that of the unaltered lesson: what is taught changes, not the learner.
        """
        if not learner.is_open(options):
            return options, None
        known = self._chosen.get((learner.name, canonical(options.changed())))
        if known is not None:
            return type(options)(**{**options.model_dump(), **json.loads(known)}), None
        home = self.unaltered
        choice = home.once(("choice", learner.name, options), lambda: learner.choose([home], options))
        return type(options)(**{**options.model_dump(), **choice.settings}), choice

    @property
    def other(self) -> Lesson:
        if self._other is None:
            raise InputError("a lesson of another task is needed; give a study at least two tasks")
        return self._other

    def learned(self, name: str, lr: float | None = None, control: str | None = None, **options: Any) -> Learned:
        """The result of a learner, computed once for the same control, rate and options.

        ``bench.learned("gd", 0.1, control="random-labels", epochs=2)``.

        Args:
            name: The learner's.
            lr: Its learning rate, where it has one; of learners that could choose it themselves, too.
            control: Under which control: ``random-labels``, ``other-task``, ...
            **options: The learner's own.

        Raises:
            InputError: No such learner, control or option; a rate is needed; or there are too few spare examples.
        """
        if lr is not None and name in LEARNERS and "lr" in LEARNERS[name].options.model_fields:
            options, lr = {**options, "lr": lr}, None
        return self.result(identify(name, options, control, lr)).learned

    def result(self, learning: LearnerSpec) -> Result:
        """The same, of a learner that is identified already."""
        learning = self._without_idle_lr(learning)
        self.lesson  # noqa: B018 (in-context learning may have to be read first, and is known then)
        if learning not in self._learned:
            self._make_room()
            self._learned[learning] = self._learn(learning)
        return Result(learning, role_of(learning), self._learned[learning])

    def keep(self, learning: LearnerSpec, learned: Learned) -> None:
        """Take over a result that is known from elsewhere."""
        self._learned[learning] = learned

    def forget(self, learning: LearnerSpec) -> None:
        """Let go of a result that is not needed again: a sweep over rates would keep all its traces."""
        if learning not in (ZERO_SHOT, IN_CONTEXT):
            self._learned.pop(self._without_idle_lr(learning), None)

    def close(self) -> None:
        """Let go of all results, and of those of the benches made from this one.

        A result knows how to compute itself again, from its bench, which keeps the result: their memory would be free
        only when Python next looks for such circles. In a process that computes many cells that is a gigabyte later.
        """
        self._learned.clear()
        self._once.clear()
        for bench in self._others:
            bench.close()

    def _learn(self, learning: LearnerSpec) -> Learned:
        learner = LEARNERS[learning.name]()
        options, own = settings_of(learning.name, learning.control, learning.settings)
        if learning.control is None:
            learned = learner.learn(self, learning.lr, options)
        else:
            learned = COMBINATORS[learning.control]().learn(self, learner, learning.lr, options, own)
        # The direct part of a random change would say nothing.
        if learning.control != "random-update":
            learned = self._with_direct(learned)
        return learned

    @staticmethod
    def _without_idle_lr(learning: LearnerSpec) -> LearnerSpec:
        """A rate given to a learner that has no use for one does not make it another learner."""
        if learning.lr is None or LEARNERS[learning.name].needs_lr:
            return learning
        return LearnerSpec(learning.name, learning.control, learning.options)

    def _make_room(self) -> None:
        """Changes of weights that are only kept go to the CPU where they would fill much of the device."""
        device = self.model.device
        kept = {key: one.delta for key, one in self._learned.items() if one.delta is not None}
        held = sum(c.nbytes for delta in kept.values() for c in delta.values() if c.device.type != "cpu")
        if held > KEPT * total_memory(device):
            for key, delta in kept.items():
                self._learned[key] = replace(self._learned[key], change=delta.to("cpu"))

    def _with_direct(self, learned: Learned) -> Learned:
        delta, trace = learned.delta, learned.trace
        if "direct" not in self.want or delta is None:
            return learned
        if not all(isinstance(slot, Part) for slot in delta.slots(self.model)):
            return learned
        extras = trace.extras | {"direct_attn_out": direct_attn_out(self.model, self.lesson, delta)}
        return replace(learned, trace=replace(trace, extras=extras))
