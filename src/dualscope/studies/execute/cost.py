"""What a study would cost, before anything is computed: for ``--dry-run``. No torch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import prod
from statistics import mean
from typing import Literal

import numpy as np

from dualscope.choosing.halving import GRID
from dualscope.core.errors import InputError
from dualscope.core.spec import PLAIN, CellSpec, LearnerSpec, ModelSpec
from dualscope.core.untrusted_files import json_of
from dualscope.core.words import PLACE_SETS, Precision
from dualscope.models.loading.gguf_file import read_header
from dualscope.models.loading.source import CONFIG, find, weights_header
from dualscope.models.reading.footprint import TRAINED_TWICE, Demand, Footprint, Shape, TrainingDemand, footprint
from dualscope.studies.choices import ChoiceJob, ChoicePiece
from dualscope.studies.execute.work import Work
from dualscope.studies.resolve import Resolver
from dualscope.studies.run_folder.storage import RunFolder

GPU = 2e13  # operations a second, a guess until cells of the same kind are stored; a CPU's are measured
CHARACTERS_A_TOKEN = 4.0
LONGEST = 2.0  # times the mean length
WIDTHS: dict[Precision, int] = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}
TRAINED = 6.0  # operations a token and weight: forward, and backward at twice its cost
AT_ONCE = 3.0  # times faster a draw is trained on among a dozen than by itself (benchmarks/draws.py)
SPARE = 200  # examples on which rates and layers are chosen, at most
OVERHEAD = 0.1  # seconds a cell: metrics, intervals, files


@cache
def cpu_speed() -> float:
    """Operations a second of one core of this machine, in float32: of products of matrices, some milliseconds long.

    >>> 1e8 < cpu_speed() < 1e13
    True
    """
    side, repeats = 64, 400  # too small to be shared among threads, which would wait for each other
    matrix, times = np.ones((side, side), np.float32), list[float]()
    for _ in range(5):
        start = time.thread_time()
        for _ in range(repeats):
            matrix @ matrix
        times.append(time.thread_time() - start)
    return 2 * side**3 * repeats / max(min(times), 1e-4)


def shape_of(name: str, offline: bool = True) -> Shape | None:
    """A model's shape, from its files' headers; None where they are not on this machine."""
    source = find(name, offline)
    if source.gguf is not None:
        header = read_header(source.gguf)
        return Shape.of(header.sizes(), header.parameters)
    path = source.file(CONFIG)
    try:
        files = source.weights()
    except InputError:
        return None
    if path is None:
        return None
    config = json_of(path, "copy the folder again")
    shapes = weights_header(files, name).values()
    return Shape.of(config, sum(prod(shape) for shape, _ in shapes))


def label_lengths(name: str, labels: Sequence[str]) -> list[int] | None:
    """How many tokens a model has for each label word; None where its tokenizer is not one file on this machine.

    >>> label_lengths("embedded", ["Positive", "Positive Negative"])
    [1, 2]
    """
    from tokenizers import Tokenizer

    source = find(name, offline=True)
    path = source.file("tokenizer.json") if source.is_converted() else None
    if path is None:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # whatever is wrong with it is said when the model is loaded
        return None
    return [max(1, len(tokenizer.encode(f" {label}", add_special_tokens=False).ids)) for label in labels]


class Estimator:
    """Seconds and bytes of cells: from cells of the same kind that are stored, else from arithmetic."""

    def __init__(
        self,
        run: RunFolder,
        cells: Sequence[CellSpec],
        resolver: Resolver,
        device: Literal["cpu", "cuda"] = "cpu",
        total: int | None = None,
    ) -> None:
        self.run, self.cells, self.resolver, self.device = run, cells, resolver, device
        self.total = total  # bytes that the device has; None: not known
        self._shapes: dict[str, Shape | None] = {}
        self._tasks = {resolver.task(entry.task).name: resolver.task(entry.task) for entry in resolver.study.tasks}
        self._tokens: dict[str, float] = {}
        self._labels: dict[tuple[str, str], int] = {}

    @cached_property
    def _measured(self) -> dict[tuple[str, str, str], float]:
        stored = self.run.stored()
        seconds: dict[tuple[str, str, str], list[float]] = {}
        for cell in self.cells:
            if cell.id in stored and (noted := self.run.notes(cell.id).get("seconds")):
                seconds.setdefault(_kind(cell), []).append(float(noted))
        return {kind: mean(values) for kind, values in seconds.items()}

    def seconds(self, cell: CellSpec) -> float | None:
        if _kind(cell) in self._measured:
            return self._measured[_kind(cell)]
        shape = self._shape(cell)
        if shape is None:
            return None
        tokens, episode = self._prompt_tokens(cell.episode.task), cell.episode
        queries = min(episode.queries, len(self._tasks[episode.task].evaluation))
        reading = 2.0 * queries * (tokens + self._label_tokens(episode.model.source, episode.task))
        training = 0.0
        if cell.learning.lr is not None:
            training = TRAINED * episode.shots * tokens
        elif episode.shots:
            reading += 2.0 * episode.shots * tokens
        work = reading + training
        if cell.intervention is not None:
            # Every draw is learned from and read; a learner that is planted is read a second time, after a context.
            again = 2.0 * (queries + episode.shots) * tokens
            planted = cell.learning in (learning for _, learning in cell.plants)
            training /= AT_ONCE if self._learns_draws(cell.learning) else 1.0
            work = cell.intervention.draws * (reading + training + planted * again)
        return self._seconds(work, shape, episode.model) + OVERHEAD

    def choice_seconds(self, job: ChoiceJob) -> float | None:
        """All rounds of a choice of a rate, in one process: each candidate trains, then reads its examples."""
        shape = self._shape_by_name(job.model.source)
        if shape is None or job.rounds is None or job.learner != PLAIN:
            return None
        tokens = self._prompt_tokens(job.task)
        asked = tokens + self._label_tokens(job.model.source, job.task)
        work = len(job.seeds) * sum(
            (candidates * TRAINED * job.shots * tokens) + (candidates + 1) * 2.0 * examples * asked
            for candidates, examples in job.rounds.most_tried(len(GRID))
        )
        return self._seconds(work, shape, job.model) + OVERHEAD * len(job.seeds)

    def _seconds(self, work: float, shape: Shape, model: ModelSpec) -> float:
        """``work`` is operations a weight; the table of embeddings is looked up, not multiplied with."""
        speed = GPU if self.device == "cuda" else cpu_speed() * WIDTHS["float32"] / max(WIDTHS[model.dtype], 4)
        return work * (shape.parameters - shape.vocabulary * shape.width) / speed

    def memory(self, cell: CellSpec) -> Footprint | None:
        """By part, on the device: of the cell and of what is held for it."""
        episode, training = cell.episode, self._training(cell, cell.learning)
        others = sum(self._training(cell, other) is not None for other in cell.beside)
        traces = 3 + len(cell.beside)
        if cell.intervention is not None:
            # Of in-context learning, its sets behind other inputs, every plant, and the learner: one a draw.
            traces += cell.intervention.draws * (2 + PLACE_SETS + len(cell.plants))
        # In-context learning is read on as many draws for every learner.
        draws = 1 if cell.intervention is None else cell.intervention.draws
        return self._memory(
            episode.model, episode.task, episode.shots, episode.queries, training, others, traces, draws
        )

    def _learns_draws(self, learning: LearnerSpec) -> bool:
        return self.resolver.learner(learning.name, learning.settings, learning.control).learns_draws

    def _training(self, cell: CellSpec, learning: LearnerSpec) -> TrainingDemand | None:
        """How a learner trains, with what was chosen for it."""
        settings = learning.settings
        for name, options, chosen in cell.chosen:
            if name == learning.name and json.loads(options).items() <= learning.settings.items():
                settings |= json.loads(chosen)
        return self.resolver.learner(learning.name, settings, learning.control).training

    def memory_of(self, work: Work) -> int:
        """Bytes of the largest cell of a piece of work; of a choice, what training and reading spare examples takes."""
        if work.cells:
            found = [self.memory(cell) for cell in work.cells]
        else:
            shots, how = max(self.resolver.study.shots), TrainingDemand()
            if isinstance(work.claimed, ChoicePiece):
                job = work.claimed.job
                how = self.resolver.learner(job.learner, json.loads(job.options)).training or how
            found = [self._memory(work.model, work.claimed.task, shots, SPARE, how, 0, 3)]
        return max((one.total for one in found if one is not None), default=0)

    def _memory(
        self,
        model: ModelSpec,
        task: str,
        shots: int,
        queries: int,
        training: TrainingDemand | None,
        others: int,
        traces: int,
        draws: int = 1,
    ) -> Footprint | None:
        shape = self._shape_by_name(model.source)
        if shape is None:
            return None
        tokens, itemsize = math.ceil(LONGEST * self._prompt_tokens(task)), WIDTHS[model.dtype]
        again = shape.parameters <= TRAINED_TWICE and itemsize < WIDTHS["float64"]
        how = training or TrainingDemand()
        if itemsize < WIDTHS["float32"]:  # such weights learn beside, which is keys and values alone
            how = replace(how, everything=False)
        demand = Demand(
            queries=min(queries, len(self._tasks[task].evaluation)),
            query_tokens=tokens,
            context_tokens=math.ceil(self._prompt_tokens(task) * shots),
            demonstration_tokens=tokens if training else 0,
            traces=traces,
            changes=1 + again + others,
            others=others,
            training=how,
            device=self.device,
            memory=self.total,
            draws=draws,
        )
        return footprint(shape, itemsize, demand)

    def _shape(self, cell: CellSpec) -> Shape | None:
        return self._shape_by_name(cell.episode.model.source)

    def _label_tokens(self, model: str, task: str) -> float:
        """Tokens that follow a prompt where labels have several: each such label but its last token is read anew."""
        if (model, task) not in self._labels:
            labels = self._tasks[task].labels
            lengths = label_lengths(model, labels) or [len(label.split()) for label in labels]
            self._labels[model, task] = sum(length - 1 for length in lengths)
        return self._labels[model, task]

    def _shape_by_name(self, name: str) -> Shape | None:
        if name not in self._shapes:
            self._shapes[name] = shape_of(name)
        return self._shapes[name]

    def _prompt_tokens(self, task: str) -> float:
        if task not in self._tokens:
            some = list(self._tasks[task].evaluation[:50])
            characters = mean(len(self._tasks[task].prompt(example)) for example in some)
            self._tokens[task] = characters / CHARACTERS_A_TOKEN
        return self._tokens[task]


def _kind(cell: CellSpec) -> tuple[str, str, str]:
    """What takes about as long: the same learner on the same task, on one lesson or on the draws of an intervention."""
    draws = "" if cell.intervention is None else f" {cell.intervention.kind} {cell.intervention.draws}"
    return cell.episode.model.weights, cell.episode.task, cell.learning.label + draws
