"""From what is on the screen to answers, learner by learner, computing again only what an edit has changed."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError
from dualscope.core.learning import IN_CONTEXT
from dualscope.explorer.answer import band, likeness, predictions
from dualscope.explorer.desk import Desk, same_queries
from dualscope.explorer.offer import Offer
from dualscope.explorer.pieces import unknown_words
from dualscope.explorer.state import State
from dualscope.explorer.watch import Watch, watched
from dualscope.explorer.words import words_of
from dualscope.tasks.episode import Episode
from dualscope.tasks.lesson import make_lesson
from dualscope.tasks.task import Task

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

KEPT = 4  # desks of past edits
SHOWN = 8  # unknown words that are named


class Explorer:
    """Holds one model and the last few desks. Not for two threads at once: jobs come one after another."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._model: Model | None = None
        self._desks: OrderedDict[str, Desk] = OrderedDict()

    def model(self, name: str) -> Model:
        from dualscope.models.model import Model

        self.offer.check_model(name)
        if self._model is None or self._model.name != name:
            self._model = None  # one at a time in memory
            self._desks.clear()
            self._model = Model.load(name, device=self.offer.device, offline=self.offer.offline)
        return self._model

    def task(self, state: State) -> Task:
        base = self.offer.task(state.task) if state.task is not None else None
        task = Task(state.config(base), None)
        if base is not None and state.fits(base):
            task.source = base.source
            task.train, task.evaluation = base.train, base.evaluation  # read once, not with every edit
        return task

    def compute(self, state: State, watch: Watch) -> None:
        """Tell of every learner on the screen as soon as it has learned, then of the controls of the one in focus."""
        began = time.perf_counter()
        desk, notes = self._sit(state, watch)
        with watched(desk.bench.model, watch):
            watch.tell(_lesson_of(desk.bench, notes))
            for name in dict.fromkeys(("zero-shot", "in-context", *state.learners)):
                self._tell_of(desk, state, name, None, watch)
            found = [
                self._tell_of(desk, state, name, control, watch)
                for control, name in self.controls(state.focus).items()
            ]
            controls = [one for one in found if one is not None]
        watch.tell({"event": "band", "of": state.focus, **band(controls)})
        watch.tell({"event": "done", "seconds": time.perf_counter() - began})

    def words(self, state: State, watch: Watch) -> None:
        """Tell which words a head looks at, in context and after the learner in focus has learned."""
        desk, _ = self._sit(state, watch)
        with watched(desk.bench.model, watch):
            watch.begin("words")
            watch.tell({"event": "words", **words_of(desk, state)})

    @staticmethod
    def controls(focus: str) -> dict[str, str]:
        """The controls of a learner, and the learner that is each."""
        return (
            {"redraw": "gd-redraw", "random-labels": "gd-random-labels", "random-update": "random-update"}
            if focus == "gd"
            else {}
        )

    def _sit(self, state: State, watch: Watch) -> tuple[Desk, list[str]]:
        self.offer.check_learners((*state.learners, state.focus))
        model = self.model(state.model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            desk = self._desk(state, model)
        return desk, [str(warning.message) for warning in caught]

    def _desk(self, state: State, model: Model) -> Desk:
        from dualscope.learners.bench import Bench
        from dualscope.metrics import METRICS, expand

        task = self.task(state)
        key = f"{state.seed} {task.config.model_dump_json()}"
        if key not in self._desks:
            shots, queries = len(state.demonstrations), len(state.queries)
            episode = Episode.draw(task, shots=shots, seed=state.seed, queries=queries)
            lesson = make_lesson(episode, model.tokenizer, model.max_positions)
            want = frozenset({"exits"}).union(*(METRICS[name].wants for name in expand()))
            last = next(reversed(self._desks.values()), None)
            known = (
                last.bench.zero_shot if last is not None and same_queries(last.bench.lesson, lesson) else None
            )
            bench = Bench(model, lesson, want=want, zero_shot=known)
            self._desks[key] = Desk(bench, None if last is None else last.bench)
        self._desks.move_to_end(key)
        while len(self._desks) > KEPT:
            self._desks.popitem(last=False)
        return self._desks[key]

    def _tell_of(
        self, desk: Desk, state: State, name: str, control: str | None, watch: Watch
    ) -> dict[str, Any] | None:
        """One learner that cannot learn here is told, and the others go on."""
        learner = name if control is None else state.focus
        watch.begin(learner if control is None else f"{learner}, {control}")
        try:
            found = self._answer(desk, state, name, control)
        except InputError as error:
            watch.tell({"event": "refused", "learner": learner, "control": control, "reason": str(error)})
            return None
        watch.tell(found)
        return found

    def _answer(self, desk: Desk, state: State, name: str, control: str | None) -> dict[str, Any]:
        from dualscope.learners import LEARNERS, identify
        from dualscope.metrics.measured import measure_cell

        began = time.perf_counter()
        bench, learned = desk.learned(name, state.rate, state.steps)
        learning = identify(name, rate=state.rate if LEARNERS[name].needs_rate else None)
        reference = None if LEARNERS[name].role == "baseline" else IN_CONTEXT
        rows = measure_cell(bench, learning, reference=reference, per_head=True).rows
        return {
            "event": "learned",
            "learner": name if control is None else state.focus,
            "control": control,
            "role": LEARNERS[name].role,
            "seconds": time.perf_counter() - began,
            **predictions(learned.trace),
            "likeness": likeness(rows, name if control is None else f"{state.focus}, {control}"),
        }


def _lesson_of(bench: Bench, notes: list[str]) -> dict[str, Any]:
    lesson, tokenizer = bench.lesson, bench.model.tokenizer
    if lesson.shots_used < lesson.shots:
        notes = [
            f"{lesson.shots_used} of {lesson.shots} demonstrations fit in the context; GD sees these too.",
            *notes,
        ]
    if unknown := unknown_words(lesson, tokenizer):
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        notes = [*notes, f"Words that this model does not know: {', '.join(unknown[:SHOWN])}{more}."]
    return {
        "event": "lesson",
        "shots": lesson.shots,
        "shots_used": lesson.shots_used,
        "steps": len(lesson.training),
        "tokens": len(lesson.context),
        "notes": list(dict.fromkeys(notes)),
    }
