"""What a study would cost, before anything is computed: for ``--dry-run``. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from statistics import mean

from dualscope.core.errors import InputError
from dualscope.core.strangers import json_of
from dualscope.models.files.source import CONFIG, find, weights_header
from dualscope.studies.cell import Cell
from dualscope.studies.resolve import Resolver
from dualscope.studies.run_folder.storage import Run

FLOPS = 40e9  # of a small CPU; a guess until cells of the same kind are stored
CHARACTERS_A_TOKEN = 4.0
WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}  # bytes of a weight
OVERHEAD = 0.3  # seconds a cell: metrics, intervals, files


@dataclass(frozen=True)
class Shape:
    """What of a model's size matters here, from its files' headers."""

    parameters: int
    bytes: int
    layers: int
    width: int
    heads: int

    @classmethod
    def of(cls, name: str, offline: bool = True) -> Shape | None:
        """None where the model's files are not on this machine."""
        source = find(name, offline)
        path = source.file(CONFIG)
        try:
            files = source.weights()
        except InputError:
            return None
        if path is None:
            return None
        config = json_of(path, "copy the folder again")
        header = weights_header(files, name).values()
        parameters = sum(prod(shape) for shape, _ in header)

        def first(*names: str) -> int:
            found = (config[key] for key in names if isinstance(config.get(key), int))
            return next((value for value in found if value > 0), 1)

        return cls(
            parameters,
            sum(prod(shape) * WIDTHS.get(dtype, 4) for shape, dtype in header),
            first("num_hidden_layers", "n_layer", "num_layers"),
            first("hidden_size", "n_embd", "d_model"),
            first("num_attention_heads", "n_head", "attention_heads", "num_heads"),
        )


class Estimator:
    """Seconds and bytes of cells: from cells of the same kind that are stored, else from arithmetic."""

    def __init__(self, run: Run, cells: Sequence[Cell], resolver: Resolver) -> None:
        self.run, self.cells, self.resolver = run, cells, resolver
        self._shapes: dict[str, Shape | None] = {}
        self._tasks = {
            resolver.task(entry.task).name: resolver.task(entry.task) for entry in resolver.study.tasks
        }
        self._tokens: dict[str, float] = {}

    @cached_property
    def _measured(self) -> dict[tuple[str, str, str], float]:
        stored = self.run.stored()
        seconds: dict[tuple[str, str, str], list[float]] = {}
        for cell in self.cells:
            if cell.id in stored and (noted := self.run.notes(cell.id).get("seconds")):
                seconds.setdefault(_kind(cell), []).append(float(noted))
        return {kind: mean(values) for kind, values in seconds.items()}

    def seconds(self, cell: Cell) -> float | None:
        if _kind(cell) in self._measured:
            return self._measured[_kind(cell)]
        shape = self._shape(cell)
        if shape is None:
            return None
        tokens, sitting = self._prompt_tokens(cell.sitting.task), cell.sitting
        work = 2.0 * sitting.queries * tokens
        if cell.learning.rate is not None:
            work += 6.0 * sitting.shots * tokens  # forward, and backward at twice its cost
        elif sitting.shots:
            work += 2.0 * sitting.shots * tokens
        return work * shape.parameters / FLOPS + OVERHEAD

    def bytes(self, cell: Cell) -> int | None:
        """Weights, the trained parts' deltas, the context's keys and values, and the traces held at once."""
        shape = self._shape(cell)
        if shape is None:
            return None
        tokens, sitting = self._prompt_tokens(cell.sitting.task), cell.sitting
        trace = 4 * sitting.queries * shape.layers * (2 * shape.width + shape.heads * tokens)
        context = 8 * shape.layers * shape.width * tokens * sitting.shots
        deltas = 4 * shape.layers * 2 * shape.width**2 if cell.learning.rate is not None else 0
        return int(shape.bytes + deltas + context + trace * (3 + len(cell.beside)))

    def _shape(self, cell: Cell) -> Shape | None:
        name = cell.sitting.place.model
        if name not in self._shapes:
            self._shapes[name] = Shape.of(name)
        return self._shapes[name]

    def _prompt_tokens(self, task: str) -> float:
        if task not in self._tokens:
            some = list(self._tasks[task].evaluation[:50])
            characters = mean(len(self._tasks[task].prompt(example)) for example in some)
            self._tokens[task] = characters / CHARACTERS_A_TOKEN
        return self._tokens[task]


def _kind(cell: Cell) -> tuple[str, str, str]:
    return cell.sitting.place.weights, cell.sitting.task, cell.learning.label
