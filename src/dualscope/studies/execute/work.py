"""Pieces of work, and what a worker must know to do them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dualscope.core.spec import CellSpec, EpisodeSpec, LearnerSpec, ModelSpec
from dualscope.studies.choices import ChoicePiece
from dualscope.studies.study import Study


@dataclass(frozen=True)
class WorkerSetup:
    """All that a worker must know, in a form that can be sent to another process or host."""

    run: str
    study: Study
    device: str = "auto"
    offline: bool = False
    threads: int | None = None
    isolate: bool = False
    """Whether a plugin's code runs in processes of its own, and nowhere else."""


@dataclass(frozen=True)
class Work:
    """Cells that share an episode, or a piece of a choice: what a worker is given, and claims."""

    claimed: EpisodeSpec | ChoicePiece
    cells: tuple[CellSpec, ...] = ()
    memory: int = field(default=0, compare=False)
    """Bytes that it needs on a GPU, as estimated; 0 where that is not known."""

    @property
    def model(self) -> ModelSpec:
        return self.claimed.model

    @property
    def is_foreign(self) -> bool:
        """Whether a plugin's code runs in it."""
        own = self.claimed.job.code if isinstance(self.claimed, ChoicePiece) else ""
        return bool(own) or any(cell.code for cell in self.cells)

    def a_learner_each(self) -> list[Work]:
        """What is foreign of it apart, a learner each; what is not together, and first."""
        groups: dict[str, list[CellSpec]] = {}
        for cell in sorted(self.cells, key=lambda cell: bool(cell.code)):
            groups.setdefault(cell.learning.name if cell.code else "", []).append(cell)
        return [replace(self, cells=tuple(cells)) for cells in groups.values()] or [self]

    @property
    def affinity(self) -> tuple[ModelSpec, str]:
        """Work of the same affinity shares a loaded model and its zero-shot traces."""
        return self.model, self.claimed.task

    @property
    def passes(self) -> int:
        """How often learners learn, plants not counted: a measure of how long it takes."""
        return sum(1 if cell.intervention is None else cell.intervention.draws for cell in self.cells)


def learnings(cells: Sequence[CellSpec]) -> Iterator[LearnerSpec]:
    """Every learner that some cells need."""
    for cell in cells:
        yield cell.learning
        yield from cell.beside
        yield from (plant for _, plant in cell.plants)
        if cell.reference is not None:
            yield cell.reference
        if cell.learning.control == "random-update":  # it is of the size of the learner's own
            yield cell.learning.under(None)
