"""A bench and the draws of an intervention: every learner on the same draws, and the scale beside them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.nn import functional as F

from dualscope.core.errors import InputError, NotFiniteError, is_out_of_memory
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import Level
from dualscope.learners.controls import COMBINATORS, settings_of
from dualscope.learners.interventions import FEWEST_A_LEVEL, INTERVENTIONS, Intervention, LessonDraw
from dualscope.learners.learner import LEARNERS
from dualscope.learners.plants import planted, planted_draws
from dualscope.models.reading.memory import draws_at_once, release

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import LearnedDraws
    from dualscope.models.reading.trace import Trace


@dataclass(frozen=True)
class OnDraws:
    """What a learner left on the draws of an intervention: a trace for each draw that did not fail."""

    draws: tuple[LessonDraw, ...]
    traces: tuple[Trace, ...]
    predictions_only: bool = False
    failed: dict[str, str] = field(default_factory=dict)  # the draws that failed, by name, and why
    planted: tuple[Trace, ...] | None = None  # the same with the learner planted; None where it cannot be
    notes: tuple[str, ...] = ()  # what was given up because memory is short


@dataclass(frozen=True)
class _Left:
    """What one draw leaves: the learner's trace, and where it is asked for the plant's."""

    traces: tuple[Trace, ...]
    predictions_only: bool = False


class ResponseBench:
    """Runs learners on every draw of an intervention. Rates, layers and other choices are those of the lesson itself.

    >>> from dualscope import Bench, Episode, Model, Task, make_lesson
    >>> model, task = Model.load("embedded", device="cpu"), Task.load("embedded-sst2")
    >>> episode = Episode.draw(task, shots=8, queries=4, balanced=True)
    >>> bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
    >>> responding = ResponseBench(bench, "relabel", draws=8)
    >>> len(responding.on_draws(LearnerSpec("in-context")).traces)
    8

    Raises:
        InputError: The lesson does not allow so many different draws.
    """

    def __init__(self, bench: Bench, intervention: str | Intervention = "relabel", draws: int = 12) -> None:
        own = INTERVENTIONS[intervention]() if isinstance(intervention, str) else intervention
        self.bench, self.intervention = bench, own
        self.draws = tuple(self.intervention.draws(bench.lesson, draws))

    def on_draws(self, learning: LearnerSpec, plant: bool = False) -> OnDraws:
        """A learner on every draw; with ``plant`` also the queries as the model that it changed reads them.

        A draw on which it diverges is left out and named; the others go on.

        Raises:
            NotFiniteError: Too few draws are left to compare.
        """
        kept, traces, plants = list[LessonDraw](), list["Trace"](), list["Trace"]()
        failed, notes = dict[str, str](), list[str]()
        alone = False
        for draw, left in self._left(learning, plant, notes):
            if wrong := [trace for trace in left.traces if not trace.label_logprobs.isfinite().all()]:
                bad = int((~wrong[0].label_logprobs.isfinite()).any(-1).sum())
                failed[draw.name] = f"label probabilities of {bad} queries are not finite"
                continue
            kept.append(draw)
            traces.append(left.traces[0])
            plants += left.traces[1:]
            alone = alone or left.predictions_only
        self._check_left(learning, kept, failed)
        found = tuple(plants) if plant else None
        return OnDraws(tuple(kept), tuple(traces), alone, failed, found, tuple(notes))

    def _left(self, learning: LearnerSpec, plant: bool, notes: list[str]) -> Iterator[tuple[LessonDraw, _Left]]:
        """What every draw leaves: several at once where the learner can, else one by one."""
        model = self.bench.model
        groups = deque(self._groups(learning))
        while groups:
            group = groups.popleft()
            try:
                found = self._together(group, learning, plant) if len(group) > 1 else None
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            else:
                if found is None:
                    found = (self._alone(draw, learning, plant) for draw in group)
                yield from zip(group, found, strict=True)
                continue
            release(model.device)  # outside the handler: there the error still holds the batch's tensors
            half = -(-len(group) // 2)
            groups.extendleft((group[half:], group[:half]))
            notes.append(f"memory was short: {half} draws were learned from at once in place of {len(group)}")

    def _groups(self, learning: LearnerSpec) -> Iterator[Sequence[LessonDraw]]:
        """Draws that memory has room for at once."""
        learner, lesson = LEARNERS[learning.name](), self.bench.lesson
        options, _ = settings_of(learning.name, learning.control, learning.settings)
        demand = learner.training(options)
        tokens = max(len(lesson.bos) + len(one.prompt) + len(one.label) for one in lesson.training)
        size = draws_at_once(self.bench.model, len(self.draws), demand, tokens if demand else 0, len(lesson.context))
        for first in range(0, len(self.draws), size):
            yield self.draws[first : first + size]

    def _together(self, group: Sequence[LessonDraw], learning: LearnerSpec, plant: bool) -> Iterator[_Left] | None:
        learner = LEARNERS[learning.name]()
        options, own = settings_of(learning.name, learning.control, learning.settings)
        benches = [self.bench.with_lesson(draw.lesson) for draw in group]
        found: LearnedDraws | None
        if learning.control is not None:
            combinator = COMBINATORS[learning.control]()
            found = combinator.learn_draws(benches, learner, learning.lr, options, own)
        else:
            found = learner.learn_draws(benches, learning.lr, options) if learner.learns_draws else None
        if found is None:
            return None
        if not plant:
            return (_Left((trace,)) for trace in found.traces)
        self._check_plantable(learning, found.change)
        assert found.change is not None
        planted = planted_draws(self.bench, found.change, len(group))
        return (_Left(pair) for pair in zip(found.traces, planted, strict=True))

    def _alone(self, draw: LessonDraw, learning: LearnerSpec, plant: bool) -> _Left:
        learned = self.bench.with_lesson(draw.lesson).result(learning).learned
        if not plant:
            return _Left((learned.trace,), learned.predictions_only)
        self._check_plantable(learning, learned.change)
        assert learned.change is not None
        return _Left((learned.trace, planted(self.bench, learned.change)), learned.predictions_only)

    def _check_plantable(self, learning: LearnerSpec, change: object) -> None:
        if why := cannot_be_planted(learning):
            raise InputError(why)
        if change is None:
            raise InputError(f"'{learning.label}' changed nothing that could be planted")

    def _check_left(self, learning: LearnerSpec, kept: list[LessonDraw], failed: dict[str, str]) -> None:
        if not failed:
            return
        left = Counter(draw.level for draw in kept)
        levels = {draw.level for draw in self.draws}
        if min((left[level] for level in levels), default=0) < FEWEST_A_LEVEL:
            name, why = next(iter(failed.items()))
            rate = "" if learning.lr is None else f"; a learning rate below {learning.lr:g} may not diverge"
            raise NotFiniteError(
                f"{learning.label} fails on {len(failed)} of {len(self.draws)} draws ({name}: {why}){rate}"
            )

    def on_lesson(self, learning: LearnerSpec) -> Trace:
        """The learner on the lesson itself, as it was drawn."""
        return self.bench.result(learning).trace


def cannot_be_planted(learning: LearnerSpec) -> str:
    """Why the queries cannot be read by a model that this learner changed; empty where they can."""
    learner = LEARNERS[learning.name]
    if learning.control is not None:
        return f"'{learning.label}' is under a control: a plant is a learner's own"
    if not learner.changes_model:
        return f"'{learning.label}' changes neither weights nor activations, so it cannot be planted in the model"
    if not learner.can_be_planted:
        return f"'{learning.label}' is read in a way of its own, and not as a changed model: it cannot be planted"
    return ""


UNIFORM = 1e-3  # mixed into label probabilities, so that no log-probability runs away


def answer_vectors(label_logprobs: Tensor) -> Tensor:
    """Log-probabilities of the classes as vectors: renormalised, mixed with a little of the uniform, centred.

    >>> import torch
    >>> answer_vectors(torch.tensor([[0.5, 0.5]]).log())
    tensor([[0., 0.]], dtype=torch.float64)
    """
    shares = F.softmax(label_logprobs.double(), -1)
    logs = ((1 - UNIFORM) * shares + UNIFORM / shares.shape[-1]).log()
    return logs - logs.mean(-1, keepdim=True)


def centred(values: Tensor, levels: Sequence[Level | None]) -> Tensor:
    """D: every draw less the mean over the draws of its level. ``values`` is [draws, ...]."""
    found = values.double().clone()
    for level in dict.fromkeys(levels):
        rows = [row for row, own in enumerate(levels) if own == level]
        found[rows] -= found[rows].mean(0, keepdim=True)
    return found


def function_part(responses: Tensor) -> Tensor:
    """The responses less each draw's mean over the queries: the function that was learned, without its prior."""
    return responses - responses.mean(1, keepdim=True)
