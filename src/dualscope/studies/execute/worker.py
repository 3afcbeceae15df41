"""What computes cells: holds one model at a time, and what an episode's learners share."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from dualscope.core.errors import InputError
from dualscope.core.spec import CellSpec, EpisodeSpec, InterventionSpec, ModelSpec
from dualscope.models.loading.digest import lineage, model_digest
from dualscope.studies.choices import ChoicePiece
from dualscope.studies.execute.plugin_isolation import SharedState, left_running
from dualscope.studies.execute.work import (
    CellError,
    Event,
    Outcome,
    Started,
    Work,
    WorkerSetup,
    is_full_disk,
    learnings,
    reason_for,
    report_of,
)
from dualscope.studies.plugins import load_plugins, plugins_digest
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.storage import GIVEN_UP, RunFolder, store_texts

if TYPE_CHECKING:
    from dualscope.learners import Bench
    from dualscope.models import Model, Trace
    from dualscope.models.loading.model_variants import Draws
    from dualscope.studies.execute.plugin_isolation import ModelFingerprint
    from dualscope.tasks import Lesson, Task


# The one model that a worker holds.


class LoadedModel:
    """Loads models one at a time; untrained weights are drawn once for all variants of a seed.

    ``ahead`` are the models of the work to come, as far as they are known: on an accelerator the weights that will be
    asked for next are drawn while it works.
    """

    def __init__(self, setting: WorkerSetup, ahead: Sequence[ModelSpec] = ()) -> None:
        self.setting, self._ahead = setting, tuple(dict.fromkeys(ahead))
        self._spec: ModelSpec | None = None
        self._model: Model | None = None
        self._draws: Draws | None = None
        self.fingerprint: ModelFingerprint | None = None

    def holds(self, spec: ModelSpec) -> bool:
        return self._model is not None and self._spec == spec

    def at(self, spec: ModelSpec) -> Model:
        """The model that is meant, loaded."""
        if self._model is None or self._spec != spec:
            self._load(spec)
            assert self._model is not None
        return self._model

    def drop(self) -> None:
        """Let go of it: it is loaded anew when it is asked for."""
        self._model = None
        release_memory()

    def what_changed(self) -> str | None:
        """What a plugin changed in the model and did not put back; None where all is as it was."""
        return self.fingerprint.broken(self._model.hf) if self.fingerprint and self._model is not None else None

    def _load(self, spec: ModelSpec) -> None:
        from transformers.utils import logging

        from dualscope.models.loading.load import load
        from dualscope.models.loading.model_variants import Draws
        from dualscope.studies.execute.plugin_isolation import ModelFingerprint

        logging.disable_progress_bar()  # the run has bars of its own
        self.drop()
        # Else the cells' ids would lie about their rows.
        if model_digest(spec.source, self.setting.offline, spec.adapter, spec.adapter_mode) != spec.weights:
            raise CellError(f"the files of '{spec.name}' changed after the study was planned: run it again")
        self._draws = self._draws or Draws()
        self._draws.settle()  # transformers' settings are the process's: nothing is drawn while it loads
        self._model = load(
            spec.source,
            device=self.setting.device,
            dtype=spec.dtype,
            variant=spec.variant,
            init_seed=spec.init_seed or 0,
            offline=self.setting.offline,
            adapter=spec.adapter,
            adapter_mode=spec.adapter_mode,
            draws=self._draws,
        )
        self._spec = spec
        self.fingerprint = ModelFingerprint.of(self._model.hf) if plugins_digest(self.setting.study.plugins) else None
        self._look_ahead(spec)

    def _look_ahead(self, spec: ModelSpec) -> None:
        """Begin to draw what the next variant of the same model will need; keep what it shares with this one."""
        from dualscope.models.loading.model_variants import DRAWN

        assert self._model is not None
        assert self._draws is not None
        if spec not in self._ahead:
            return
        after = self._ahead[self._ahead.index(spec) + 1 :]
        coming = next((p for p in after if p.source == spec.source and p.variant in DRAWN), None)
        if coming is None:
            self._draws.forget()
        elif self._model.device.type != "cpu":  # else the cores have other things to do
            self._draws.prepare(self._model.hf, coming.init_seed or 0)


def release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


T = TypeVar("T")
IN_FILES = "memory has no room for the trace: it was kept in files, and looked at layer by layer"


class Worker:
    """Does work, one piece after another; keeps the model and the zero-shot traces of the last one."""

    def __init__(self, setting: WorkerSetup, claims: Claims, ahead: Sequence[ModelSpec] = ()) -> None:
        self.setting, self.claims = setting, claims
        self.run = RunFolder.create(setting.run)
        self._loaded = LoadedModel(setting, ahead)
        self._zero_shot: tuple[Any, Trace] | None = None
        self._disk_full = False
        self._meddled: str | None = None
        self._foreign = False

    def do(self, work: Work, tell: Callable[[Event], None]) -> bool:
        """Compute what of the work is not there yet. False where another process is at it."""
        key = work.claimed.key
        self._foreign = work.is_foreign
        try:
            if not self.claims.take(key):
                return False
        except OSError as error:  # a claim is a file, and a full disk takes none
            for about in [(cell.id, str(cell)) for cell in work.cells] or [(key, str(work.claimed))]:
                tell(Outcome(*about, "failed", reason=reason_for(error)))
            return True
        try:
            if isinstance(work.claimed, EpisodeSpec):
                with ExitStack() as over:
                    self._compute_cells(work.claimed, work.cells, tell, over)
            else:
                self._choose(work.claimed, tell)
        finally:
            self.claims.release(key)
        return True

    # Cells

    def _compute_cells(
        self, episode: EpisodeSpec, cells: Sequence[CellSpec], tell: Callable[[Event], None], over: ExitStack
    ) -> None:
        """The cells of an episode; ``over`` closes its bench when all of them are done."""
        bench: Bench | None = None
        broken: Exception | None = None
        for place, cell in enumerate(cells):
            if bench is not None:
                _forget(bench, cells[:place], cells[place:])
            if self._is_done(cell):  # another process was here between the plan and the claim
                tell(Outcome(cell.id, str(cell), "was there"))
                continue
            tell(Started(str(cell)))
            began = time.perf_counter()
            try:
                if broken is not None:  # the model or the episode itself: no cell of this episode can be had
                    raise broken
                if self._disk_full:
                    raise CellError("not computed: the disk that holds the run folder is full")
                if bench is None:
                    try:
                        bench = self._bench(episode, cells)
                        over.callback(bench.close)
                    except Exception as error:
                        broken = error
                        raise
                self._compute(cell, bench, began)
            except (Exception, SystemExit) as error:  # a plugin may call sys.exit
                self._disk_full = self._disk_full or is_full_disk(error)
                self._record(cell, error)
                tell(_failure(cell.id, str(cell), began, error))
                if self._meddled or self._loaded.what_changed() is not None:
                    self._meddled = None
                    bench = self._zero_shot = None  # loaded anew for the next cell
                    self._loaded.drop()
                release_memory()
            else:
                tell(Outcome(cell.id, str(cell), "stored", time.perf_counter() - began))

    def _compute(self, cell: CellSpec, bench: Bench, began: float) -> None:
        if cell.intervention is not None:
            self._respond(cell, cell.intervention, bench, began)
            return
        from dualscope.metrics.measured import measure_cell

        measured = self._guarded(
            cell,
            bench,
            lambda: measure_cell(
                bench,
                cell.learning,
                cell.beside,
                reference=cell.reference,
                metrics=cell.metrics,
                per_head=cell.per_head,
                per_query=cell.per_query,
                subset=cell.episode.subset,
            ),
        )
        learned = measured.result.learned
        columns = cell.columns(learned.shots_used or bench.lesson.shots_used)
        given_up = (*learned.notes, *([IN_FILES] if learned.trace.is_in_files else []))
        self.run.store(
            cell.id,
            [{**columns, **row} for row in measured.rows],
            queries=measured.queries,
            trace=learned.trace.save if self.setting.study.save_traces else None,
            notes=_notes_on(cell, bench, began, given_up),
        )

    def _respond(self, cell: CellSpec, spec: InterventionSpec, bench: Bench, began: float) -> None:
        """A learner on the draws of an intervention. What learners share is kept while the episode lasts."""
        from dualscope.learners.response_bench import ResponseBench
        from dualscope.metrics.measured_response import ResponseMeter

        meter = bench.once(spec, lambda: ResponseMeter(ResponseBench(bench, spec.kind, spec.draws)))
        measured = self._guarded(cell, bench, lambda: meter.measure(cell.learning, cell.plants))
        columns = cell.columns(bench.lesson.shots_used)
        self.run.store(
            cell.id,
            [{**columns, **row} for row in measured.rows],
            queries=measured.queries,
            responses=measured.responses,
            notes=_notes_on(cell, bench, began, measured.notes),
        )

    def _guarded(self, cell: CellSpec, bench: Bench, measure: Callable[[], T]) -> T:
        """What is measured, where a plugin has changed nothing that other cells share."""
        if left_running():
            raise CellError("not computed: a thread that a plugin left running may change anything")
        shared = SharedState(bench) if cell.code else None
        try:
            measured = measure()
        finally:
            self._meddled = shared.restore() if shared is not None else None
        if self._meddled is not None:
            raise CellError(
                f"{cell.learning.label} changed what other cells share ({self._meddled}), so its numbers are not kept: "
                "a learner or metric has to copy what it changes"
            )
        if cell.code and (what := self._loaded.what_changed()) is not None:
            raise CellError(
                f"{cell.learning.label} left the model changed ({what}), so its numbers are not kept and the model is "
                "loaded anew: a learner has to leave the weights as it found them"
            )
        return measured

    def _is_done(self, cell: CellSpec) -> bool:
        traced = self.setting.study.save_traces and cell.intervention is None
        return self.run.has(cell.id) and (not traced or self.run.has_trace(cell.id))

    def _record(self, cell: CellSpec, error: BaseException) -> None:
        try:
            self.run.fail(cell.id, report_of(error, str(cell)))
        except OSError as second:  # the disk is full: the outcome that is told carries the reason
            self._disk_full = self._disk_full or is_full_disk(second)

    # What cells share

    def _load_plugins(self) -> None:
        """Where plugins are isolated, into processes that do their work and no other."""
        if self._foreign or not self.setting.isolate:
            load_plugins(self.setting.study.plugins)

    def model(self, spec: ModelSpec) -> Model:
        if not self._loaded.holds(spec):
            self._zero_shot = None
        return self._loaded.at(spec)

    @cached_property
    def _tasks(self) -> dict[str, Task]:
        from dualscope.tasks import Task

        study = self.setting.study
        names = [*(entry.task for entry in study.tasks), *(name for name in study.queries_from if name)]
        loaded = [Task.load(name, data=study.data, offline=self.setting.offline, chat=study.chat) for name in names]
        return {task.name: task for task in loaded}

    def _lesson(self, episode: EpisodeSpec, task: str, model: Model) -> Lesson:
        from dualscope.tasks import Episode, make_lesson

        asked = episode.queries_from if task == episode.task else None
        drawn = Episode.from_spec(episode, self._tasks[task], None if asked is None else self._tasks[asked[0]])
        return make_lesson(
            drawn,
            model.tokenizer,
            model.max_positions,
            read_at=episode.read_at,
            gd_demonstrations=episode.gd_demonstrations,
            gd_order=episode.gd_order,
        )

    def _bench(self, episode: EpisodeSpec, cells: Sequence[CellSpec]) -> Bench:
        """The episode before the model. What it caches goes with it when the episode is over."""
        from dualscope.learners import Bench
        from dualscope.metrics import expand, wanted_by

        self._load_plugins()
        for name, data in ((episode.task, episode.data), episode.queries_from or (episode.task, episode.data)):
            if self._tasks[name].digest != data:
                raise CellError(f"the data of '{name}' changed after the study was planned: run it again")
        model = self.model(episode.model)
        lesson = self._lesson(episode, episode.task, model)
        if self.setting.study.texts and episode.shots:
            store_texts(self.run, lesson)
        others = [cell.other_task for cell in cells if cell.other_task is not None]
        other = self._lesson(episode, others[0][0], model) if others else None
        want = wanted_by(expand(cells[0].metrics))
        if not episode.shots:  # there is no in-context learning here whose next tokens could be compared
            want -= {"next_tokens"}
        # Which next tokens are noted depends on the demonstrations.
        shared = None if "next_tokens" not in want else episode
        key = (episode.model, episode.data, episode.read_at, want, lesson.queries, lesson.answers, shared)
        known = self._zero_shot[1] if self._zero_shot is not None and self._zero_shot[0] == key else None
        bench = Bench(
            model,
            lesson,
            want=want,
            zero_shot=known,
            other=other,
            chosen={(name, options): found for cell in cells for name, options, found in cell.chosen},
        )
        if known is None:
            self._zero_shot = None  # before the new one is made: one at a time
            self._zero_shot = (key, bench.zero_shot)
        return bench

    def _choose(self, piece: ChoicePiece, tell: Callable[[Event], None]) -> None:
        if piece.is_stored(self.run):
            tell(Outcome(piece.key, str(piece), "was there"))
            return
        tell(Started(str(piece)))
        began = time.perf_counter()
        try:
            self._load_plugins()
            model, task = self.model(piece.model), self._tasks[piece.task]
            found = piece.compute(model, task, self.run, lambda about: tell(Started(about)))
            self.run.write_json(piece.path, found | {"seconds": round(time.perf_counter() - began, 3)})
        except (Exception, SystemExit) as error:
            tell(_failure(piece.key, str(piece), began, error))
        else:
            tell(Outcome(piece.key, str(piece), "stored", time.perf_counter() - began))


def _failure(key: str, about: str, began: float, error: BaseException) -> Outcome:
    seconds = time.perf_counter() - began
    return Outcome(key, about, "failed", seconds, reason_for(error), isinstance(error, InputError))


def _forget(bench: Bench, past: Sequence[CellSpec], future: Sequence[CellSpec]) -> None:
    """Only what cells to come still need is held: memory does not grow with the number of rates."""
    for learning in set(learnings(past[-1:])) - set(learnings(future)):
        bench.forget(learning)
    for spec in {cell.intervention for cell in past[-1:]} - {cell.intervention for cell in future} - {None}:
        bench.let_go(spec)


def _notes_on(cell: CellSpec, bench: Bench, began: float, given_up: Sequence[str]) -> dict[str, str]:
    """What is noted beside a cell's rows: how long it took, where, and what was given up or failed."""
    import torch

    return {
        "seconds": f"{time.perf_counter() - began:.3f}",
        "device": str(bench.model.device),
        "parameters": str(sum(weights.numel() for weights in bench.model.hf.parameters())),
        "threads": str(torch.get_num_threads()),
        **_lineage_of(cell),
        **({GIVEN_UP: "; ".join(given_up)} if given_up else {}),
    }


def _lineage_of(cell: CellSpec) -> dict[str, str]:
    """Of which training the model is a checkpoint, and at which step: an axis of the report."""
    found = lineage(cell.episode.model.source, cell.episode.model.name)
    return {"family": found.family} | ({} if found.step is None else {"step": str(found.step)})
