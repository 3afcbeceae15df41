"""Ctrl-C where it would leave half of something."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of this: half an update must not become a checkpoint."""
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def ignore_interrupts(_: int) -> None:
    """In a worker process: Ctrl-C reaches it too, and the loop ends it in its own time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
