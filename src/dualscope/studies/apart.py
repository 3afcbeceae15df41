"""Questions about a plugin's code, answered by a process of their own: what asks never imports the plugin."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reason

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
