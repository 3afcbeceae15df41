"""A bench and the draws of an intervention: every learner on the same draws, and the scale beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dualscope.core.errors import InputError, NotFiniteError
from dualscope.core.spec import LearnerSpec
from dualscope.learners.interventions import FEWEST_A_LEVEL, INTERVENTIONS, LessonDraw
from dualscope.learners.learner import LEARNERS
from dualscope.learners.plants import planted

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Learned
    from dualscope.models.trace import Trace


@dataclass(frozen=True)
class OnDraws:
    """What a learner left on the draws of an intervention: a trace for each draw that did not fail."""

    draws: tuple[LessonDraw, ...]
    traces: tuple[Trace, ...]
    predictions_only: bool = False
    failed: dict[str, str] = field(default_factory=dict)  # the draws that failed, by name, and why
    planted: tuple[Trace, ...] | None = None  # the same with the learner planted; None where it cannot be


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

    def __init__(self, bench: Bench, intervention: str = "relabel", draws: int = 12) -> None:
        self.bench, self.intervention = bench, INTERVENTIONS[intervention]()
        self.draws = tuple(self.intervention.draws(bench.lesson, draws))

    def on_draws(self, learning: LearnerSpec, plant: bool = False) -> OnDraws:
        """A learner on every draw; with ``plant`` also the queries as the model that it changed reads them.

        A draw on which it diverges is left out and named; the others go on.

        Raises:
            NotFiniteError: Too few draws are left to compare.
        """
        kept, traces, plants = list[LessonDraw](), list["Trace"](), list["Trace"]()
        failed: dict[str, str] = {}
        alone = False
        for draw in self.draws:
            altered = self.bench.with_lesson(draw.lesson)
            learned = altered.result(learning).learned
            found = [learned.trace]
            if plant:
                found.append(self._planted(learning, learned))
            if wrong := [trace for trace in found if not trace.label_logprobs.isfinite().all()]:
                bad = int((~wrong[0].label_logprobs.isfinite()).any(-1).sum())
                failed[draw.name] = f"label probabilities of {bad} queries are not finite"
                continue
            kept.append(draw)
            traces.append(learned.trace)
            plants += found[1:]
            alone = alone or learned.predictions_only
        self._check_left(learning, kept, failed)
        return OnDraws(tuple(kept), tuple(traces), alone, failed, tuple(plants) if plant else None)

    def _planted(self, learning: LearnerSpec, learned: Learned) -> Trace:
        if why := cannot_be_planted(learning):
            raise InputError(why)
        if learned.change is None:
            raise InputError(f"'{learning.label}' changed nothing that could be planted")
        return planted(self.bench, learned.change)

    def _check_left(self, learning: LearnerSpec, kept: list[LessonDraw], failed: dict[str, str]) -> None:
        if not failed:
            return
        left = Counter(draw.level for draw in kept)
        levels = {draw.level for draw in self.draws}
        if min((left[level] for level in levels), default=0) < FEWEST_A_LEVEL:
            name, why = next(iter(failed.items()))
            rate = (
                "" if learning.rate is None else f"; a learning rate below {learning.rate:g} may not diverge"
            )
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
