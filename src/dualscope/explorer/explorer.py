"""From what is on the screen to answers, learner by learner, computing again only what an edit has changed."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError
from dualscope.explorer.answer import likeness, numbers, predictions
from dualscope.explorer.offer import Offer
from dualscope.explorer.state import State
from dualscope.explorer.watch import Watch, watched
from dualscope.tasks.episode import Episode
from dualscope.tasks.lesson import Lesson, make_lesson
from dualscope.tasks.task import Task

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

KEPT = 4  # benches of past edits


class Explorer:
    """Holds one model and the last few benches. Not for two threads at once: jobs come one after another."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._model: Model | None = None
        self._benches: OrderedDict[str, Bench] = OrderedDict()

    def model(self, name: str) -> Model:
        from dualscope.models.model import Model

        self.offer.check_model(name)
        if self._model is None or self._model.name != name:
            self._model = None  # one at a time in memory
            self._benches.clear()
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
        """Tell of every learner on the screen as soon as it has learned."""
        began = time.perf_counter()
        self.offer.check_learners((*state.learners, state.focus))
        model = self.model(state.model)
        with warnings.catch_warnings(record=True) as caught, watched(model, watch):
            warnings.simplefilter("always", UserWarning)
            watch.begin("tokens")
            bench = self.bench(state, model)
            watch.tell(_lesson_of(bench.lesson, [str(warning.message) for warning in caught]))
            for name in ("zero-shot", "in-context", *state.learners):
                watch.begin(name)
                try:
                    watch.tell(self._answer(bench, state, name))
                except InputError as error:
                    watch.tell({"event": "refused", "learner": name, "reason": str(error)})
        watch.tell({"event": "done", "seconds": time.perf_counter() - began})

    def bench(self, state: State, model: Model) -> Bench:
        from dualscope.learners.bench import Bench
        from dualscope.metrics import METRICS, expand

        task = self.task(state)
        shots, queries = len(state.demonstrations), len(state.queries)
        episode = Episode.draw(task, shots=shots, seed=state.seed, queries=queries)
        lesson = make_lesson(episode, model.tokenizer, model.max_positions)
        key = f"{state.seed} {task.config.model_dump_json()}"
        if key not in self._benches:
            want = frozenset({"exits"}).union(*(METRICS[name].wants for name in expand()))
            self._benches[key] = Bench(model, lesson, want=want)
        self._benches.move_to_end(key)
        while len(self._benches) > KEPT:
            self._benches.popitem(last=False)
        return self._benches[key]

    def _answer(self, bench: Bench, state: State, name: str) -> dict[str, Any]:
        from dualscope.learners import LEARNERS
        from dualscope.metrics import Case, measure

        began = time.perf_counter()
        learned = bench.learned(name, state.rate if LEARNERS[name].needs_rate else None)
        case = Case(
            zero_shot=bench.zero_shot,
            reference=bench.in_context,
            learned=learned,
            learner=LEARNERS[name].name,
            relative_positions=bench.model.relative_positions,
            first_window=bench.model.first_window,
            seed=state.seed,
            lesson=bench.lesson,
        )
        rows = measure(case, per_head=True, seed=state.seed).rows
        return {
            "event": "learned",
            "learner": name,
            "role": LEARNERS[name].role,
            "seconds": time.perf_counter() - began,
            **predictions(learned.trace),
            "likeness": likeness(rows, name),
            "numbers": numbers(rows, ("accuracy",)),
        }


def _lesson_of(lesson: Lesson, notes: list[str]) -> dict[str, Any]:
    if lesson.shots_used < lesson.shots:
        notes = [
            f"{lesson.shots_used} of {lesson.shots} demonstrations fit in the model's context; the others are left out",
            *notes,
        ]
    return {
        "event": "lesson",
        "shots": lesson.shots,
        "shots_used": lesson.shots_used,
        "tokens": len(lesson.context),
        "notes": list(dict.fromkeys(notes)),
    }
