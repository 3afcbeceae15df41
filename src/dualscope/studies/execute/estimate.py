"""What a study would cost, before anything is computed: for ``--dry-run``. No torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from dualscope.core.errors import InputError
from dualscope.models.source import find
from dualscope.studies.cell import Cell
from dualscope.studies.resolve import Resolver
from dualscope.studies.run_folder.storage import Run

FLOPS = 40e9  # of a small CPU; a guess until cells of the same kind are stored
CHARACTERS_A_TOKEN = 4.0
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
        path = source.file("config.json")
        try:
            files = source.weights()
        except InputError:
            return None
        if path is None:
            return None
        config = json.loads(path.read_text())
        parameters = size = 0
        for file in files:
            with file.open("rb") as stream:
                header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
            for name_, entry in header.items():
                if name_ != "__metadata__":
                    count = 1
                    for side in entry["shape"]:
                        count *= side
                    parameters += count
                    size += entry["data_offsets"][1] - entry["data_offsets"][0]

        def first(*names: str) -> int:
            return next((int(config[key]) for key in names if config.get(key)), 1)

        return cls(
            parameters,
            size,
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
        if cell.learning.lr is not None:
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
        deltas = 4 * shape.layers * 2 * shape.width**2 if cell.learning.lr is not None else 0
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
