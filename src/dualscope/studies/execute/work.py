"""Pieces of work, and what a worker must know to do them."""

from __future__ import annotations

import contextlib
import errno
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dualscope.core.errors import InputError, NotFiniteError, is_out_of_memory
from dualscope.core.folder import Folder
from dualscope.core.spec import CellSpec, EpisodeSpec, LearnerSpec, ModelSpec
from dualscope.studies.choices import ChoicePiece
from dualscope.studies.run_folder.storage import RunFolder
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


# How a piece of work ended, and what to tell people when it ended badly.


FULL = (errno.ENOSPC, errno.EDQUOT)


class CellError(Exception):
    """A cell whose numbers would not mean anything; the message says why and what to try."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell (or of a choice of a rate)."""

    key: str
    about: str
    state: Literal["stored", "failed", "was there"]
    seconds: float = 0.0
    reason: str = ""
    """For people, in one line."""
    bad_input: bool = False
    """The user can mend it; a computer that is tried again cannot."""


@dataclass(frozen=True)
class Started:
    """A cell is being computed now."""

    about: str


@dataclass(frozen=True)
class Waiting:
    """Other processes are at what is left."""

    pieces: int
    holders: tuple[str, ...]


Event = Outcome | Started | Waiting


def is_full_disk(error: BaseException) -> bool:
    """Also where it is safetensors, which has errors of its own, that could not write."""
    return (isinstance(error, OSError) and error.errno in FULL) or "No space left on device" in str(error)


def reason_for(error: BaseException) -> str:
    """One line: what happened, and the next step where there is one.

    >>> reason_for(OSError(28, "No space left on device"))
    'the disk that holds the run folder is full: free some space and run the same command again'
    >>> reason_for(MemoryError())
    'out of memory, even one query at a time: use fewer --shots, a smaller --dtype (bfloat16) or another --device'
    """
    if is_full_disk(error):
        return "the disk that holds the run folder is full: free some space and run the same command again"
    if is_out_of_memory(error):
        return (
            "out of memory, even one query at a time: use fewer --shots, a smaller --dtype (bfloat16) "
            "or another --device"
        )
    if isinstance(error, SystemExit):
        return f"its code asked the program to end (sys.exit, {error.code!r})"
    text = " ".join(str(error).split())
    return text if isinstance(error, (InputError, NotFiniteError, CellError)) else f"{type(error).__name__}: {text}"


def report_of(error: BaseException, about: str) -> str:
    """What goes to failures/<id>.txt: the reason, the cell, the traceback."""
    return f"{reason_for(error)}\n\n{about}\n\n{''.join(traceback.format_exception(error))}"


ATTEMPTS = 2


class Queue:
    """Hands out work by affinity, and takes back what a lost worker was doing."""

    def __init__(self, works: Sequence[Work], tell: Callable[[Event], None], run: str) -> None:
        self._waiting = list(works)
        self._tell = tell
        self._run = RunFolder(Folder.at(run))
        self._lost: Counter[Work] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def next(
        self, last: Work | None, at_work: Sequence[Work] = (), suits: Callable[[Work], bool] = lambda _work: True
    ) -> Work | None:
        """For a worker that last did ``last``: the same model and task, the same model, or what no other
        worker is at the model of. None where others are at all that is left, or none of it ``suits``.
        """
        busy, claimed = {work.model for work in at_work}, {work.claimed.key for work in at_work}

        def fit(work: Work) -> tuple[bool, bool, bool]:
            return (
                last is not None and work.affinity == last.affinity,
                last is not None and work.model == last.model,
                work.model not in busy,
            )

        free = [work for work in self._waiting if work.claimed.key not in claimed and suits(work)]
        if not free:
            return None
        best = max(free, key=fit)  # the first of the best: the plan's order
        self._waiting.remove(best)
        return best

    def take_back(self, work: Work, how: str) -> None:
        """A worker was lost. What it had stored stays; the rest is tried again, then cell by cell, so that only the
        cell fails that no worker survives.
        """
        self._lost[work] += 1
        if self._lost[work] < ATTEMPTS:
            self._waiting.insert(0, work)
        elif len(work.cells) > 1:
            self._waiting[:0] = [replace(work, cells=(cell,)) for cell in work.cells]
        else:
            self.refuse(
                work, f"its worker was lost {ATTEMPTS} times ({how}); on a machine short of memory use fewer --jobs"
            )

    def refuse(self, work: Work, reason: str) -> None:
        """It cannot be done: all that it was for fails with this reason."""
        for cell in work.cells:
            with contextlib.suppress(OSError):  # a full disk; the outcome that is told says it
                self._run.fail(cell.id, f"{reason}\n\n{cell}\n")
            self._tell(Outcome(cell.id, str(cell), "failed", reason=reason))
        if not work.cells:
            self._tell(Outcome(work.claimed.key, str(work.claimed), "failed", reason=reason))
