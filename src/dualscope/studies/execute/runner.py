"""Runs a study: plans it, leaves out what is there, has the rest computed, and says how it went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dualscope.choosing.halving import GRID
from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError
from dualscope.core.spec import CellSpec, ModelSpec
from dualscope.core.words import Precision
from dualscope.models.loading.automatic_precision import automatic_dtype, on_cpu
from dualscope.models.loading.digest import is_here, model_digest
from dualscope.studies import choices, provenance
from dualscope.studies.execute.cost import Estimator
from dualscope.studies.execute.engines import ENGINES
from dualscope.studies.execute.evict import Eviction, noting_download
from dualscope.studies.execute.work import Event, Outcome, Waiting, Work, WorkerSetup
from dualscope.studies.execute.worker_count import fitting_jobs, suitable_jobs, suitable_threads
from dualscope.studies.paths import anchored, named_model
from dualscope.studies.plan import Plan, Planner
from dualscope.studies.plugins import Apart
from dualscope.studies.resolve import Resolver, asks_for_recorded, recorded_rates
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.storage import RunFolder
from dualscope.studies.study import Study

POLL = 0.5  # seconds between looks at what another process is computing


@dataclass(repr=False)
class RunOutcome:
    """How a run of a study went."""

    run: RunFolder
    cells: list[CellSpec]
    computed: list[str] = field(default_factory=list)
    failures: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: list[CellSpec] = field(default_factory=list)  # the cells of all shards, stored or not
    asides: list[str] = field(default_factory=list)  # what a learner cannot have by its nature

    @property
    def complete(self) -> bool:
        return not self.failures

    def __repr__(self) -> str:
        return (
            f"RunOutcome({len(self.cells)} cells, {len(self.computed)} computed now, {len(self.failures)} failed, "
            f"in {str(self.run.folder)!r})"
        )


class Runner:
    """A study and a run folder.

    ``tell`` hears of every event; ``begin`` of how many pieces there are over all phases, how many of them are stored,
    and what the others are estimated to take; again where more is known. ``jobs`` None
    means as many as suit the models and the machine. Without ``fetch`` it can only plan. With ``evict`` a model leaves
    the hub's cache when all its cells are stored. With ``isolate_plugins`` their code
    runs in processes of its own alone.
    """

    def __init__(
        self,
        study: Study,
        out: str | Path,
        *,
        device: str = "auto",
        offline: bool = False,
        engine: str = "local",
        jobs: int | None = 1,
        shard: tuple[int, int] = (1, 1),
        fetch: bool = True,
        evict: bool = False,
        isolate_plugins: bool = False,
        tell: Callable[[Event], None] = lambda _event: None,
        begin: Callable[[int, int, Mapping[str, float]], None] = lambda _total, _there, _seconds: None,
    ) -> None:
        self.study = Study.build(anchored(study.model_dump(), Path.cwd()))  # workers may run elsewhere
        self.engine = ENGINES[engine]
        self.shard, self.offline, self.device = shard, offline, device
        self.tell, self.begin = tell, begin
        self.evict = evict
        self._eviction: Eviction | None = None
        self._chosen_in = 0  # pieces in which choices were made
        self.run = RunFolder.create(out)
        known = provenance.known(self.run)
        memory = known.get("names", {})
        self.apart = Apart() if isolate_plugins else None
        self.resolver = Resolver(self.study, memory, offline, self.apart)
        if isolate_plugins and not self.resolver.plugins:
            raise InputError("--isolate-plugins: no plugin is installed, and the study names none (--plugin FILE.py)")
        self.models = [source for _, source in map(named_model, self.study.models)]
        self.weights = {model: self._digest(model, fetch) for model in self.models}
        self.dtypes = self._precisions(known.get("automatic", {}))
        suitable = jobs or suitable_jobs(self.models, device)
        self.jobs = jobs or (suitable if engine == "local" else 1)  # a cluster knows itself how many
        self.shares_gpu = jobs is None and self.jobs > 1 and not on_cpu(device)
        self.before = known.get("where", {}).get("threads")
        threads = suitable_threads(suitable, self.before, on_gpu=not on_cpu(device))
        self.setting = WorkerSetup(str(self.run.folder), self.study, device, offline, threads, isolate_plugins)
        self.where = {"engine": engine, "jobs": self.jobs, "device": device, "threads": threads}

    def _digest(self, model: str, fetch: bool) -> str:
        if not (fetch or is_here(model)):
            return "not fetched"
        with noting_download(self.run, model):
            return model_digest(model, self.offline, self.study.adapter, self.study.adapter_mode)

    def _precisions(self, before: Mapping[str, Precision]) -> dict[str, Precision]:
        """Of each model: what is asked for, what this run was begun with, or what suits the model here.

        A run that is resumed where there is an accelerator keeps its precision: its cells are known by it.
        """
        if self.study.dtype != "auto":
            return dict.fromkeys(self.models, self.study.dtype)
        named = map(named_model, self.study.models)
        names = {model: ModelSpec(model, "", called=called).name for called, model in named}
        return {
            model: before.get(name) or automatic_dtype(model, self.device, offline=True)
            for model, name in names.items()
        }

    def plan(self, suppose: Mapping[str, str] | None = None) -> Plan:
        """The cells of this shard, as far as choices are made; ``suppose`` has settings that are yet to be chosen."""
        known = {**(suppose or {}), **choices.settings_of(self.run)}
        tasks = [self.resolver.task(entry.task).name for entry in self.study.tasks]
        cards = recorded_rates(self.models, tasks) if asks_for_recorded(self.study) else {}
        plan = Planner(self.study, self.resolver, self.weights, cards, known, self.dtypes).plan()
        episodes = plan.episodes()
        number, shards = self.shard
        first, last = (len(episodes) * i // shards for i in (number - 1, number))
        mine = list(episodes.values())[first:last]
        plan.cells = [cell for cells in mine for cell in cells]
        return plan

    def execute(self) -> RunOutcome:
        """Compute what is missing. An interruption leaves a run that the same command resumes."""
        plan = self.plan()
        result = RunOutcome(self.run, plan.cells, notes=plan.notes, whole=plan.whole, asides=plan.asides)
        self._announce(plan)
        if plan.choices:
            self._choose(plan, result)
            plan = self.plan()
            result.cells, result.whole = plan.cells, plan.whole
        try:
            self.run.folder.write("study.yaml", self.study.dump().encode())
            provenance.record(self.run, self.resolver, plan, self.weights, self.where, self.dtypes)
        except OSError as error:
            file = error.filename2 or error.filename or self.run.folder
            raise InputError(f"--out {self.run.folder}: {file} cannot be written ({error.strerror})") from None
        if self.before not in (None, self.setting.threads):
            result.notes.append(
                f"this run was begun with {self.before} threads a worker, and this machine has {self.setting.threads}: "
                "sums round otherwise, and cells computed now may differ from it in their last digits"
            )
        self._discard_unreadable(result)
        plan.cells = result.cells
        works = self._missing(plan)
        self._announce(plan)
        if self.evict:
            self._eviction = Eviction(self.run, plan.whole)
        try:
            self._do(works, result)
        finally:
            if self.apart is not None:
                self.apart.end()
            Claims(self.run.folder).clear_stale()
            self.run.folder.sweep(stale=float("inf"))
        if result.computed and result.complete:
            provenance.note_devices(self.run, result.computed)
        if self._eviction is not None:
            self._eviction.look()
            result.notes += self._eviction.notes
        return result

    def later(self, plan: Plan) -> list[CellSpec]:
        """The cells that wait for a rate to be chosen: any rate tells how many they are, and what they cost."""
        waiting = {job.key: canonical({"lr": GRID[len(GRID) // 2]}) for job in plan.choices if job.chooses_lr}
        listed = {cell.id for cell in plan.cells}
        return [cell for cell in self.plan(waiting).cells if cell.id not in listed] if waiting else []

    def _announce(self, plan: Plan) -> None:
        """How much there is over all phases, as far as it is known now."""
        cells, stored = [*plan.cells, *self.later(plan)], self.run.stored()
        missing = [cell for cell in cells if not self._is_done(cell, stored)]
        estimator = Estimator(self.run, plan.cells, self.resolver, "cpu" if on_cpu(self.setting.device) else "cuda")
        guessed = {cell.id: seconds for cell in missing if (seconds := estimator.seconds(cell)) is not None}
        unmade = [job for job in plan.choices if not choices.is_choice(self.run.recall(job.path))]
        self.begin(len(cells) + self._chosen_in + choices.most_pieces(unmade), len(cells) - len(missing), guessed)

    def _choose(self, plan: Plan, result: RunOutcome) -> None:
        """What learners leave open, round by round, in pieces that are stored."""
        while pieces := [piece for job in plan.choices for piece in choices.pending(self.run, job)]:
            self._do([Work(piece) for piece in pieces], result)
            self._chosen_in += len(pieces)
            if result.failures:
                break
        result.computed.clear()  # these were no cells
        known = choices.chosen(self.run)
        for job in plan.choices:
            found = known.get(job.key, {})
            if found.get("at_edge"):
                said = ", ".join(f"{name} {value}" for name, value in found["settings"].items())
                result.notes.append(f"{job}: {said}, at the edge of the grid: the best may lie beyond")

    def _missing(self, plan: Plan) -> list[Work]:
        stored = self.run.stored()
        works = []
        for episode, cells in plan.episodes().items():
            todo = tuple(cell for cell in cells if not self._is_done(cell, stored))
            if todo:
                work = Work(episode, todo)
                works += work.a_learner_each() if self.setting.isolate else [work]
        # Of a model and a task the long ones first: what is left for the end is short, and no worker waits for another.
        turn = {affinity: n for n, affinity in enumerate(dict.fromkeys(work.affinity for work in works))}
        return sorted(works, key=lambda work: (turn[work.affinity], -work.passes))

    def _is_done(self, cell: CellSpec, stored: set[str]) -> bool:
        traced = self.study.save_traces and cell.intervention is None
        return cell.id in stored and (not traced or self.run.has_trace(cell.id))

    def _discard_unreadable(self, result: RunOutcome) -> None:
        """A cell whose file is damaged is as good as not there: it is said, and computed again.

        Where the way to it is at fault (a disk's error, a permission) nothing is deleted: it is told, and left out.
        """
        for broken in self.run.pack.discard_broken():
            result.notes.append(f"{broken.file} could not be read ({broken.why}): its cells are computed again")
        stored, lost = self.run.every(), set()
        damaged = []
        for cell, broken in self.run.unreadable(c.id for c in result.cells if c.id in stored).items():
            if broken.damaged:
                result.notes.append(f"{broken.file} could not be read ({broken.why}): it is computed again")
                damaged.append(cell)
            else:
                lost.add(cell)
                reason = f"{broken.file} cannot be read ({broken.why}); nothing was deleted"
                result.failures.append(Outcome(cell, broken.file, "failed", reason=reason))
        self.run.discard(damaged)
        result.cells = [cell for cell in result.cells if cell.id not in lost]
        result.whole = [cell for cell in result.whole if cell.id not in lost]

    def _do(self, works: Sequence[Work], result: RunOutcome) -> None:
        """Have the work done; what others have claimed is waited for, and taken over if they die."""
        seen: dict[str, Outcome] = {}

        def listen(event: Event) -> None:
            if isinstance(event, Outcome):
                if event.state == "was there" and event.key in seen:
                    return  # what a lost worker had stored stays stored by this run
                seen[event.key] = event
                if self._eviction is not None and event.state != "failed":
                    self._eviction.stored([event.key])
            self.tell(event)

        watch = Claims(self.run.folder)
        said: set[str] = set()
        free, held = self._sort_out(works, watch)
        while free or held:
            if free:
                held += self.engine(self._sized(free), self.setting, self.processes(free), listen)
            if held:
                self._say_who(held, watch, said)
                time.sleep(POLL)
            free, held = self._sort_out(self._still_missing(held, listen), watch)
        result.computed += [key for key, outcome in seen.items() if outcome.state == "stored"]
        result.failures += [outcome for outcome in seen.values() if outcome.state == "failed"]

    def _sized(self, works: Sequence[Work]) -> Sequence[Work]:
        """With the memory that they need, where a cluster gives GPUs accordingly."""
        if self.where["engine"] != "ray":
            return works
        estimator = Estimator(self.run, (), self.resolver, "cuda")
        return [replace(work, memory=estimator.memory_of(work)) for work in works]

    def processes(self, works: Sequence[Work]) -> int:
        """As many as were asked for, or suit; without a number, no more than fit on a GPU by the estimate."""
        if not self.shares_gpu:
            return self.jobs
        estimator = Estimator(self.run, (), self.resolver, "cuda")
        return fitting_jobs(self.jobs, max(map(estimator.memory_of, works), default=0), self.device)

    def _sort_out(self, works: Sequence[Work], watch: Claims) -> tuple[list[Work], list[Work]]:
        """What is free, and what other processes compute: nothing is started for the latter."""
        free: list[Work] = []
        held: list[Work] = []
        for work in works:
            (free if watch.holder(work.claimed.key) is None else held).append(work)
        return free, held

    def _say_who(self, held: Sequence[Work], watch: Claims, said: set[str]) -> None:
        """For whom and since when we wait, whenever one of them is new."""
        holders = {work.claimed.key: watch.holder(work.claimed.key) for work in held}
        news = {holder for holder in holders.values() if holder is not None} - said
        if news and not said:
            self.tell(Waiting(len(held), tuple(sorted(news))[:3]))
        said |= news

    def _still_missing(self, claimed: Sequence[Work], tell: Callable[[Event], None]) -> list[Work]:
        stored, missing = self.run.stored(), []
        for work in claimed:
            todo = tuple(cell for cell in work.cells if not self._is_done(cell, stored))
            for cell in work.cells:
                if cell not in todo:
                    tell(Outcome(cell.id, str(cell), "was there"))
            if todo or not work.cells:
                missing.append(Work(work.claimed, todo))
        return missing


def execute_study(study: Study | Mapping[str, Any], out: str | Path, **options: Any) -> RunOutcome:
    """Compute a study, or what is missing of it. Options are the `Runner`'s: ``jobs``, ``device``, ``engine``."""
    study = study if isinstance(study, Study) else Study.build(study)
    return Runner(study, out, **options).execute()
