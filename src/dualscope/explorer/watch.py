"""Following a model while it works: where it is, and whether anybody still wants the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualscope.models.model import Model

EVERY = 0.05  # seconds between two reports of progress


class Cancelled(Exception):
    """The page has asked for something else since: the job is cancelled."""


class Watch:
    """Told of every layer that is entered, in reading and in training; reports now and then, and stops the work."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        self._stop = threading.Event()
        self._learner, self._passes, self._last = "", 0, 0.0

    def cancel(self) -> None:
        self._stop.set()

    def check(self) -> None:
        if self._stop.is_set():
            raise Cancelled

    def begin(self, learner: str) -> None:
        self.check()
        self._learner, self._passes = learner, 0

    def entered(self, layer: int, layers: int) -> None:
        self.check()
        self._passes += layer == 0
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            where = {"learner": self._learner, "pass": self._passes, "layer": layer, "layers": layers}
            self.tell({"event": "progress", **where})


@contextmanager
def watched(model: Model, watch: Watch) -> Iterator[None]:
    """Hooks on the blocks, inside ``with``: a cancelled pass ends at the next layer, and the model is as before."""
    with ExitStack() as stack:
        for layer, block in enumerate(model.blocks):

            def hook(_: Any, __: Any, layer: int = layer) -> None:
                watch.entered(layer, len(model.blocks))

            stack.callback(block.register_forward_pre_hook(hook).remove)
        yield
