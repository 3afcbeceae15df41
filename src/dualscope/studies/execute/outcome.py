"""How a piece of work ended, and what to tell people when it ended badly."""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from typing import Literal

from dualscope.core.errors import InputError, NotFiniteError, is_out_of_memory

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
