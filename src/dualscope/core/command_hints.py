"""How this program was started, so that the commands in its hints can be typed as they are shown."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NAME = "dualscope"
MODULES = ("__main__.py", "cli.py")


def called(*words: str) -> str:
    """A command of ours as it can be typed here: by its name where the shell finds it, else by its path.

    >>> called("doctor", "--model", "m").endswith("dualscope doctor --model m")
    True
    """
    return " ".join([_program(Path(sys.argv[0])), *words])


def _program(first: Path) -> str:
    if first.name in MODULES and first.parent.name == NAME:
        return f"{_typed(Path(sys.executable))} -m {NAME}"
    return _typed(first) if first.stem == NAME and first.exists() else NAME


def _typed(program: Path) -> str:
    """Its name where the shell would find the same file, else its path from here."""
    found = shutil.which(program.name)
    if found is not None and Path(found).absolute() == program.absolute():
        return program.name
    try:
        return str(program.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(program.absolute())


def again(options: Mapping[str, Sequence[str]], arguments: Sequence[str] | None = None) -> str:
    """The command that was given, with these options in place of its own, as it can be typed.

    >>> again({"--seeds": ["8"]}, ["run", "--task", "sst2", "--seeds=3"]).partition("dualscope ")[2]
    'run --task sst2 --seeds 8'
    >>> again({"--task": ["a", "b"]}, ["run", "my study.yaml"]).partition("dualscope ")[2]
    "run 'my study.yaml' --task a --task b"
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    short = {"-t": "--task", "-m": "--model", "-l": "--learner", "-v": "--verbose"}
    kept: list[str] = []
    skip = False
    for word in given:
        name, _, joined = word.partition("=")
        if skip:
            skip = False
        elif short.get(name, name) in options:
            skip = not joined
        else:
            kept.append(word)
    added = [word for name, values in options.items() for value in values for word in (name, value)]
    return called(*map(shlex.quote, [*kept, *added]))


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, these variables are so; None takes one away. Afterwards they are as before.

    >>> with environment({"DUALSCOPE_EXAMPLE": "1"}):
    ...     os.environ["DUALSCOPE_EXAMPLE"]
    '1'
    >>> "DUALSCOPE_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
