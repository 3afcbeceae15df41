"""Controls: what any learner can be run under, to see what its likeness is worth without the claim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, ValidationError

from dualscope.core.errors import InputError, suggest
from dualscope.core.options import Options
from dualscope.core.registry import Registry
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import CONTROL_ROLES, Control, Role
from dualscope.descent.dual_records import Log
from dualscope.learners.altered_lessons import borrowed, redrawn, relabelled, reordered, without_labels
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner
from dualscope.learners.plants import with_other_inputs

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.reading.trace import Trace
    from dualscope.tasks.lesson import Lesson

Known = Learner[Any]


class DrawOptions(Options):
    draw: int = Field(1, ge=1, description="which other draw, or which other order")


class RandomUpdateOptions(Options):
    draw: int = Field(0, ge=0, description="which random draw")


class Combinator(ABC):
    """Runs a learner in such a way that what it learned, or that it learned, is not the reason for the result."""

    title: ClassVar[str]  # what sentences say a learner under it is with
    decides: ClassVar[str | None] = None  # what it takes away, in a word, where it decides unless it teaches something
    options: ClassVar[type[Options]] = Options
    needs_other: ClassVar[bool] = False  # a lesson of another task

    @abstractmethod
    def learn(self, bench: Bench, learner: Known, lr: float | None, options: Options, own: Any) -> Learned:
        """What the learner leaves under this control, whose own options are ``own``."""

    def learn_draws(
        self, benches: Sequence[Bench], learner: Known, lr: float | None, options: Options, own: Any
    ) -> LearnedDraws | None:
        """The same on several draws at once; see `Learner.learn_draws`."""
        return None


class OnAlteredLesson(Combinator):
    """Runs a learner on another lesson that asks the same queries."""

    @abstractmethod
    def alter(self, bench: Bench, own: Any) -> Lesson:
        """The lesson to learn from instead."""

    def learn(self, bench: Bench, learner: Known, lr: float | None, options: Options, own: Any) -> Learned:
        altered = bench.with_lesson(self.alter(bench, own))
        return replace(learner.learn(altered, lr, options), shots_used=altered.lesson.shots_used)

    def learn_draws(
        self, benches: Sequence[Bench], learner: Known, lr: float | None, options: Options, own: Any
    ) -> LearnedDraws | None:
        altered = [bench.with_lesson(self.alter(bench, own)) for bench in benches]
        return learner.learn_draws(altered, lr, options) if learner.learns_draws else None


COMBINATORS: Registry[type[Combinator]] = Registry("control")


@COMBINATORS.register("redraw")
class Redraw(OnAlteredLesson):
    """The same learner from another draw of demonstrations: how alike can anything be?"""

    title = "other demonstrations"
    options = DrawOptions

    def alter(self, bench: Bench, own: DrawOptions) -> Lesson:
        return redrawn(bench.lesson, bench.model, own.draw)


@COMBINATORS.register("reorder")
class Reorder(OnAlteredLesson):
    """The same demonstrations in another order."""

    title = "another order"
    options = DrawOptions

    def alter(self, bench: Bench, own: DrawOptions) -> Lesson:
        return reordered(bench.lesson, own.draw)


@COMBINATORS.register("random-labels")
class RandomLabels(OnAlteredLesson):
    """The same demonstrations with labels drawn at random."""

    title = "random labels"
    decides = "random labels"

    def alter(self, bench: Bench, own: Options) -> Lesson:
        return relabelled(bench.lesson, bench.model.max_positions)


@COMBINATORS.register("other-task")
class OtherTask(OnAlteredLesson):
    """Another task's demonstrations."""

    title = "another task's demonstrations"
    decides = "other task"
    needs_other = True

    def alter(self, bench: Bench, own: Options) -> Lesson:
        return borrowed(bench.lesson, bench.other, bench.model.max_positions)


@COMBINATORS.register("unlabelled")
class Unlabelled(OnAlteredLesson):
    """The demonstrations' prompts without their labels: what descent learns from the texts alone."""

    title = "no labels"

    def learn(self, bench: Bench, learner: Known, lr: float | None, options: Options, own: Any) -> Learned:
        self._check(learner, options)
        return super().learn(bench, learner, lr, options, own)

    def learn_draws(
        self, benches: Sequence[Bench], learner: Known, lr: float | None, options: Options, own: Any
    ) -> LearnedDraws | None:
        self._check(learner, options)
        return super().learn_draws(benches, learner, lr, options, own)

    def alter(self, bench: Bench, own: Options) -> Lesson:
        return without_labels(bench.lesson)

    @staticmethod
    def _check(learner: Known, options: Options) -> None:
        if learner.family != "gradient":
            raise InputError(
                f"'{learner.name}/unlabelled': only gradient descent can be taught prompts without labels; for a "
                "context without labels take null-context"
            )
        if getattr(options, "loss", None) == "label" or getattr(options, "space", None) == "labels":
            raise InputError(
                f"'{learner.name}/unlabelled': its loss is of the labels alone, and there is none; take loss: all, "
                "space: vocabulary"
            )


@COMBINATORS.register("places")
class LabelsInPlaces(OnAlteredLesson):
    """The same labels in the same places behind other inputs: what copying labels by their place would do."""

    title = "its labels in the same places behind other inputs"
    options = DrawOptions

    def alter(self, bench: Bench, own: DrawOptions) -> Lesson:
        return with_other_inputs(bench.lesson, bench.model, bench.spare, own.draw)


@COMBINATORS.register("random-update")
class RandomUpdate(Combinator):
    """A random change of what the learner changes, of the same norms."""

    title = "a random change of the same size"
    options = RandomUpdateOptions

    def learn(self, bench: Bench, learner: Known, lr: float | None, options: Options, own: Any) -> Learned:
        real = bench.result(LearnerSpec.of(learner.name, options.changed(), None, lr)).learned
        if real.change is None:
            raise InputError(unchanged(learner.name))
        change = real.change.randomised(bench.lesson.episode.seed, own.draw)

        def again(_: Lesson) -> Trace:
            return learner.read(bench, change, options, few=True)

        trace = learner.read(bench, change, options)
        return Learned(trace, change, Log(update_norm=real.log.update_norm), again=again, one_layer=real.one_layer)


def unchanged(learner: str) -> str:
    """Why a learner cannot be under `random-update`."""
    return f"'{learner}' changes neither weights nor activations, so there is no random update of its size"


def identify(
    name: str, options: Mapping[str, Any] | None = None, control: str | None = None, lr: float | None = None
) -> LearnerSpec:
    """Who is meant: aliases resolved, a control split off, options checked, those that are the defaults left out.

    >>> identify("ft", {"epochs": 1}, lr=0.1)
    LearnerSpec(name='gd', control=None, options='{}', lr=0.1)
    >>> identify("gd/redraw", {"draw": 2}).label
    'gd[draw=2]/redraw'
    >>> identify("gd", {"epoch": 2})
    Traceback (most recent call last):
    dualscope.core.errors.InputError: learner 'gd': option 'epoch': extra inputs are not permitted, found 2. ...
    """
    name, _, under = name.partition("/")
    if under and control not in (None, under):
        raise InputError(f"learner '{name}' cannot be under two controls: {under} and {control}")
    control = under or control
    name = LEARNERS.canonical(name)
    known: Control | None = None
    if control is not None:
        known = COMBINATORS.canonical(control)  # type: ignore[assignment]
    own, theirs = settings_of(name, known, options or {})
    return LearnerSpec.of(name, {**own.changed(), **theirs.changed()}, known, lr)


def settings_of(name: str, control: Control | None, options: Mapping[str, Any]) -> tuple[Options, Options]:
    """A learner's options and its control's, checked; an error names the learner, the option and what is accepted."""
    kind = LEARNERS[name].options
    under = COMBINATORS[control].options if control is not None else Options
    theirs = {key: value for key, value in options.items() if key in under.model_fields}
    rest = {key: value for key, value in options.items() if key not in theirs}
    return _checked(name, kind, rest, under), _checked(name, under, theirs, kind)


def _checked(name: str, kind: type[Options], options: Mapping[str, Any], beside: type[Options]) -> Options:
    try:
        return kind(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(word) for word in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        accepted = [*kind.model_fields, *beside.model_fields]
        near = suggest(where, accepted) if first["type"] == "extra_forbidden" else ""
        hint = near[: near.index("Known")] if "Known" in near else ""
        raise InputError(
            f"learner '{name}': option '{where}': {message}, found {first['input']!r}. "
            f"{hint}Accepted options: {', '.join(accepted) or 'none'}."
        ) from None


def role_of(learning: LearnerSpec) -> Role:
    """What a learner is to the question; under a control, what the control makes of it."""
    return LEARNERS[learning.name].role if learning.control is None else CONTROL_ROLES[learning.control]


def needs_other(learning: LearnerSpec) -> bool:
    """Whether it is taught from another task."""
    own, _ = settings_of(learning.name, learning.control, learning.settings)
    controlled = learning.control is not None and COMBINATORS[learning.control].needs_other
    return controlled or LEARNERS[learning.name]().needs_other(own)
