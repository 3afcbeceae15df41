"""A user's own learners and metrics: a Python file (``--plugin FILE.py``) or an installed entry point.

A plugin registers things when it is imported, through the same registries as everything else. Installed packages
name theirs under the entry-point group ``dualscope.plugins``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import bytes_of, reason

GROUP = "dualscope.plugins"
MODULE = "dualscope_plugin_"  # how the module of a file is called, before the digest of its code


def _installed() -> tuple[EntryPoint, ...]:
    return _found_on(tuple(sys.path))


@lru_cache(maxsize=1)
def _found_on(_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Every installed package is looked at, and a study asks for each of its learners: so it is kept."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def plugins_digest(files: Sequence[str]) -> str:
    """A hash of the plugins' code (of an installed one, its version); empty where there are none."""
    parts = [f"{point.value} {point.dist.version if point.dist else ''}" for point in _installed()]
    parts += [hashlib.sha256(_source(file)).hexdigest() for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else ""


def load_plugins(files: Sequence[str]) -> None:
    """Import the plugins, each once a process; one that cannot be imported is an `InputError`."""
    for point in _installed():
        try:
            point.load()
        except (Exception, SystemExit) as error:
            raise InputError(f"the installed plugin '{point.name}' ({point.value}) fails: {error}") from error
    for file in files:
        digest = hashlib.sha256(_source(file)).hexdigest()
        name = f"{MODULE}{digest[:16]}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise InputError(f"--plugin {file}: not a Python file (its name has to end in .py)")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs, as import does: dataclasses look their module up
        before = dict(os.environ)
        try:
            spec.loader.exec_module(module)
            _check_registered(file, name)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            if isinstance(error, InputError) and str(error).startswith("--plugin"):
                raise
            said = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            raise InputError(f"--plugin {file}: {said}{error}") from error
        gone = sorted(before.keys() - os.environ.keys())
        if gone:
            os.environ.update({key: before[key] for key in gone})
            raise InputError(f"--plugin {file}: it removes variables of the environment ({gone[0]} and others)")


def _check_registered(file: str, module: str) -> None:
    """Check that what a plugin registers can be built, and has a title and a role."""
    from dualscope.core.words import ROLES
    from dualscope.learners import LEARNERS

    for name in LEARNERS:
        kind = LEARNERS[name]
        if kind.__module__ != module:
            continue
        if kind.role not in ROLES:
            raise InputError(f"--plugin {file}: learner '{name}': role {kind.role!r}; one of {', '.join(ROLES)}")
        try:
            kind()
        except Exception as error:
            raise InputError(
                f"--plugin {file}: learner '{name}' cannot be made ({type(error).__name__}: {error})"
            ) from error


def is_foreign(thing: Any) -> bool:
    """Defined outside the package."""
    return str(thing.__module__).split(".")[0] != "dualscope"


def _source(file: str) -> bytes:
    try:
        return bytes_of(Path(file))
    except InputError as error:
        raise InputError(f"--plugin {error}") from None


T = TypeVar("T")


class Apart:
    """A process that is started with the first question, and answers until it is ended.

    >>> apart = Apart()
    >>> apart.ask(max, 2, 3)
    3
    >>> apart.end()
    """

    def __init__(self) -> None:
        self._line: Connection | None = None
        self._end: Callable[[], object] = lambda: None

    def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function of a module answers there; what it raises in words is raised here."""
        if self._line is None:
            context = multiprocessing.get_context("spawn")
            self._line, theirs = context.Pipe()
            process = context.Process(target=_answer, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._end = weakref.finalize(self, _kill, process, self._line)
        try:
            self._line.send((function, arguments))
            found, error = self._line.recv()
        except (EOFError, OSError):
            self.end()
            raise InputError("--isolate-plugins: a plugin's code ended the process that it is loaded in") from None
        if error is not None:
            raise InputError(error)
        answer: T = found
        return answer

    def end(self) -> None:
        """End the process, whatever a plugin does in it."""
        self._end()
        self._line = None


def _kill(process: BaseProcess, line: Connection) -> None:
    line.close()
    process.kill()
    process.join()


def _answer(line: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; who asks decides
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, arguments = line.recv()
            try:
                line.send((function(*arguments), None))
            except InputError as error:
                line.send((None, str(error)))
            except (Exception, SystemExit) as error:
                line.send((None, f"a plugin fails ({type(error).__name__}: {reason(error)})"))
