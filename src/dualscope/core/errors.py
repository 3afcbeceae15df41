"""What goes wrong because of what a person gave us, said so that they can mend it."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input. The command line prints the message alone and exits with code 2.

    A good message names the file and the field, what was found, what is accepted, and the next step.

    >>> from dualscope import LEARNERS
    >>> LEARNERS["lcdg"]
    Traceback (most recent call last):
    dualscope.core.errors.InputError: unknown learner 'lcdg': did you mean lcgd...
    """


class NotFiniteError(ArithmeticError):
    """Numbers that are not finite where a prediction is to be read; the message says whose, and what to try."""


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest names, then all of them.

    >>> suggest("sst", ["sst2", "mr"])
    'did you mean sst2? Known: mr, sst2.'
    """
    names = sorted(known)
    plain = {known.casefold(): known for known in names}
    near = [plain[found] for found in get_close_matches(name.casefold(), plain, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."


def check_word(value: str, accepted: Iterable[str], name: str) -> None:
    """Refuse a setting that is none of the accepted words.

    >>> check_word("golden", ("gold", "flipped"), "demo_labels")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: demo_labels: 'golden' is not accepted; accepted: gold, flipped
    """
    words = list(accepted)
    if value not in words:
        raise InputError(f"{name}: '{value}' is not accepted; accepted: {', '.join(words)}")


NO_MEMORY = (
    *("can't allocate memory", "cannot allocate memory", "out of memory", "failed to map segment"),
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device, or the machine, ran out of memory.

    Torch has an error of its own for a GPU, known here by its name; where the CPU's allocator or MPS has nothing left,
    it raises a plain RuntimeError. Under a limit (ulimit -v) a library cannot be mapped, or a thread not started.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("MPS backend out of memory"))
    (True, True)
    >>> is_out_of_memory(RuntimeError("shapes differ"))
    False
    """
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, (RuntimeError, ImportError)) and any(words in text for words in NO_MEMORY))
    )
