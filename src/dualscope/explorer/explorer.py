"""From what is on the screen to answers, learner by learner, computing again only what an edit has changed."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError, NotFiniteError
from dualscope.core.spec import IN_CONTEXT, ZERO_SHOT, LearnerSpec
from dualscope.explorer.attended_words import unknown_words, words_of
from dualscope.explorer.bench_cache import BenchCache, same_queries
from dualscope.explorer.deciding_controls import DecidingControl, answer_of, deciding_controls, on_untrained
from dualscope.explorer.jobs import Cancelled, Watch, watched
from dualscope.explorer.offer import Offer, recorded
from dualscope.explorer.shown_result import LAYERED, band, chosen, influence_of, likeness, predictions
from dualscope.explorer.state import State
from dualscope.tasks.episode import Episode
from dualscope.tasks.lesson import make_lesson
from dualscope.tasks.task import Task

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

KEPT = 4  # screens, with what was computed for them
SLOW = 2.0  # seconds
SHOWN = 8  # unknown words that are named


class Explorer:
    """Holds one model, and what was computed for the last few screens. It is not for two threads at once."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._model: Model | None = None
        self._caches: OrderedDict[str, BenchCache] = OrderedDict()
        self._took: dict[str, float] = {}  # seconds of the learners that are slow

    def model(self, name: str) -> Model:
        from dualscope.models.model import Model

        self.offer.check_model(name)
        if self._model is None or self._model.name != name:
            self._model = None  # one at a time in memory
            self._caches.clear()
            self._model = Model.load(name, device=self.offer.device, dtype="auto", offline=self.offer.offline)
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
        cache, notes = self._benches_of(state)
        focus = learning_of(state.focus, state)
        controls = []
        with watched(cache.bench.model, watch):
            watch.tell(_lesson_of(cache.bench, notes))
            # Those that took long last time come last, so that the quick ones do not wait.
            learners = sorted(state.learners, key=lambda name: self._took.get(name, 0.0))
            for learning in (ZERO_SHOT, IN_CONTEXT, *(learning_of(name, state) for name in learners)):
                told = self._tell_of(cache, state, learning, watch)
                if told is not None and told["seconds"] > SLOW:
                    self._took[learning.name] = told["seconds"]
            for control in deciding_controls(focus):
                told = self._tell_of_control(cache, state, control, watch)
                controls += [told] if told is not None and not told["teaches"] else []
        watch.tell({"event": "band", "of": state.focus, **band(controls)})
        watch.tell({"event": "done", "seconds": time.perf_counter() - began})

    def words(self, state: State, watch: Watch) -> None:
        """Tell which words a head looks at, in context and after the learner in focus has learned."""
        cache, _ = self._benches_of(state)
        with watched(cache.bench.model, watch):
            watch.begin("words")
            learning = learning_of(state.focus, state)
            watch.tell({"event": "words", **words_of(cache.watched(), state, learning)})

    def influence(self, state: State, watch: Watch) -> None:
        """Tell what each demonstration taught each query: in-context learning, then the learner in focus."""
        from dualscope.learners.response_bench import ResponseBench
        from dualscope.metrics.measured_response import ResponseMeter

        began = time.perf_counter()
        cache, _ = self._benches_of(state)
        focus = learning_of(state.focus, state)
        with watched(cache.bench.model, watch):
            watch.begin(IN_CONTEXT.label)
            meter = ResponseMeter(ResponseBench(cache.bench_for(focus, state.steps), "flip-one"))
            for learning in dict.fromkeys((IN_CONTEXT, focus)):
                _tell(watch, learning, partial(influence_of, meter, learning))
        watch.tell({"event": "done", "seconds": time.perf_counter() - began})

    def rate(self, state: State, watch: Watch) -> None:
        """Tell the rate at which the learner in focus is most accurate: the card's, or chosen on spare examples."""
        from dualscope.learners import LEARNERS

        cache, _ = self._benches_of(state)
        name = state.focus if LEARNERS[state.focus].needs_lr else "gd"
        task = self.offer.task(state.task) if state.task is not None else None
        known = recorded(state.model, task) if task is not None and state.fits(task) else None
        if known is not None:
            watch.tell({"event": "rate", "rate": known, "why": f"recorded in the model's card for {state.task}"})
            return
        with watched(cache.bench.model, watch):
            watch.begin(f"the rate of {name}")
            kind = LEARNERS[name]
            choice = kind().choose([cache.bench], kind.options())
        on = f"{choice.n} other examples" if cache.bench.spare else "each demonstration after the others"
        watch.tell({"event": "rate", "rate": choice.settings["lr"], "why": f"{name} is most accurate there on {on}"})

    def _tell_of_control(
        self, cache: BenchCache, state: State, control: DecidingControl, watch: Watch
    ) -> dict[str, Any] | None:
        def make() -> dict[str, Any]:
            learning = control.learning
            bench = cache.bench_for(learning, state.steps)
            if control.untrained:
                bench = on_untrained(cache, state.seed, state.steps, learning, self.offer.device)
                with watched(bench.model, watch):
                    return {"event": "learned", "control": control.name, **answer_of(control, bench, bench)}
            return {"event": "learned", "control": control.name, **answer_of(control, bench, cache.bench)}

        return _tell(watch, control.learning, make, control.name)

    def _benches_of(self, state: State) -> tuple[BenchCache, list[str]]:
        self.offer.check_learners((*state.learners, state.focus))
        model = self.model(state.model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            cache = self._cache_of(state, model)
        return cache, [str(warning.message) for warning in caught]

    def _cache_of(self, state: State, model: Model) -> BenchCache:
        from dualscope.learners.bench import Bench
        from dualscope.metrics import wanted_by

        task = self.task(state)
        key = f"{state.seed} {task.config.model_dump_json()}"
        if key not in self._caches:
            shots, queries = len(state.demonstrations), len(state.queries)
            episode = Episode.draw(task, shots=shots, seed=state.seed, queries=queries)
            lesson = make_lesson(episode, model.tokenizer, model.max_positions)
            want = wanted_by(LAYERED) | {"exits"}
            last = next(reversed(self._caches.values()), None)
            known = last.bench.zero_shot if last is not None and same_queries(last.bench.lesson, lesson) else None
            bench = Bench(model, lesson, want=want, zero_shot=known)
            self._caches[key] = BenchCache(bench, None if last is None else last.bench)
        self._caches.move_to_end(key)
        while len(self._caches) > KEPT:
            self._caches.popitem(last=False)
        return self._caches[key]

    def _tell_of(self, cache: BenchCache, state: State, learning: LearnerSpec, watch: Watch) -> dict[str, Any] | None:
        return _tell(watch, learning, lambda: {"event": "learned", **_answer(cache, state, learning)})


def _tell(
    watch: Watch, learning: LearnerSpec, make: Callable[[], dict[str, Any]], control: str | None = None
) -> dict[str, Any] | None:
    """One learner that cannot learn here is told, and the others go on."""
    watch.begin(control or learning.label)
    who = {"learner": learning.name, "control": control or learning.control}
    try:
        found = {**who, **make()}
    except Cancelled:
        raise
    except (InputError, NotFiniteError) as error:
        watch.tell({"event": "refused", **who, "reason": str(error)})
        return None
    except Exception as error:  # a learner may come from a plugin
        traceback.print_exc(file=sys.stderr)
        reason = f"{type(error).__name__}: {error} (the whole story is in the terminal)"
        watch.tell({"event": "refused", **who, "reason": reason})
        return None
    watch.tell(found)
    return found


def learning_of(name: str, state: State) -> LearnerSpec:
    """A learner of the screen, at the screen's rate where it has one."""
    from dualscope.learners import LEARNERS, identify

    return identify(name, lr=state.rate if LEARNERS[name].needs_lr else None)


def _answer(cache: BenchCache, state: State, learning: LearnerSpec) -> dict[str, Any]:
    from dualscope.metrics.measured import measure_cell

    began = time.perf_counter()
    bench = cache.bench_for(learning, state.steps)
    # Zero-shot and in-context are where likeness is taken from and to: compared with nothing, they answer at once.
    reference = None if learning in (ZERO_SHOT, IN_CONTEXT) else IN_CONTEXT
    measured = measure_cell(bench, learning, reference=reference, metrics=LAYERED, per_head=True)
    return {
        "role": measured.result.role,
        "seconds": time.perf_counter() - began,
        "chosen": chosen(measured.result.learned.choice, bench),
        **predictions(measured.result.trace),
        "likeness": likeness(measured.rows, learning),
    }


def _lesson_of(bench: Bench, notes: list[str]) -> dict[str, Any]:
    lesson, tokenizer = bench.lesson, bench.model.tokenizer
    if lesson.shots_used < lesson.shots:
        notes = [f"{lesson.shots_used} of {lesson.shots} demonstrations fit in the context; GD sees these too.", *notes]
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
