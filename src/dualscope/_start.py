"""The first moments of the command line: Ctrl-C ends it at once, and without a traceback, until it has words for it."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` takes milliseconds, and this is about them
import sys

PROGRAM = "dualscope"


def hush() -> None:
    """Where this process is the command line (and not a notebook), have the system itself end it."""
    name = (getattr(sys, "argv", None) or [""])[0]
    started = name == "-m" or name.replace("\\", "/").rpartition("/")[2] == PROGRAM
    _change(signal.default_int_handler, signal.SIG_DFL, started)


def listen() -> None:
    """From here on Ctrl-C is an exception, as ever."""
    _change(signal.SIG_DFL, signal.default_int_handler)


def _change(before: object, after: object, wanted: bool = True) -> None:
    try:
        if wanted and signal.getsignal(signal.SIGINT) is before:
            signal.signal(signal.SIGINT, after)
    except ValueError:  # not the main thread
        pass
