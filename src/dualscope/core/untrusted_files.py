"""Reading files that others made: whatever is wrong with one is an `InputError` with its name and the reason.

Everything that comes from outside passes here: study and task files, model folders and their cards, run folders, data.
Sizes are bounded, and only regular files are opened: a pipe or a device would be waited for, or read for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError

LARGEST_TEXT = 64 * 2**20  # bytes of a configuration, a tokenizer's table, a card
LONGEST_REASON = 300  # characters of another library's message


@contextmanager
def reading(what: object, advice: str = "") -> Iterator[None]:
    """Inside, only the content of a file is looked at: every failure is the file's fault, and named so.

    >>> with reading("model.json", "copy it again"):
    ...     int("x")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: model.json: cannot be read (invalid literal for int() with base 10: 'x'); \
copy it again
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # A library in Rust raises its PanicException, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: cannot be read ({reason(error)}){f'; {advice}' if advice else ''}") from error


def reason(error: BaseException) -> str:
    """An error in one line, for people.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x")), reason(KeyError("weight_map"))
    ('no such file', "KeyError: 'weight_map'")
    """
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return "larger than this machine's memory"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    line = lines[0].strip() if lines else ""
    if not line or isinstance(error, (LookupError, TypeError, AttributeError)):
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def bytes_of(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """A whole file that must be regular and of a sane size."""
    try:
        size = path.stat().st_size  # follows links; says so where there is nothing
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # no permission on the way; a NUL in its name
        raise InputError(f"{printable(str(path))}: cannot be read ({reason(error)})") from None
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path}: is a folder; a file is needed")
        if not path.is_file():
            raise InputError(f"{path}: is not a regular file (a pipe, a device or a socket)")
        if size > largest:
            raise InputError(f"{path}: {size / 2**20:.0f} MB are not read as text; at most {largest >> 20} MB")
        return path.read_bytes()


def text_of(path: Path, largest: int = LARGEST_TEXT) -> str:
    """A file's text in UTF-8, with or without a byte-order mark."""
    try:
        return bytes_of(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None


def json_of(path: Path, advice: str = "") -> dict[str, Any]:
    """The object in a JSON file."""
    text = text_of(path)
    with reading(path, advice):
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(f"expected an object {{...}}, found {type(content).__name__}")
        return content


def printable(text: str) -> str:
    """Text that a terminal only shows: words of a file in a message can neither move the cursor nor keep the message
    from being written.

    >>> printable("a\\x1b[2Jb \\ud800\\n")
    'a\\\\x1b[2Jb \\\\ud800\\n'
    """
    kept = "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return kept.encode("utf-8", "backslashreplace").decode()
