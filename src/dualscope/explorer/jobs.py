"""One job at a time: a page's new edit cancels its old one, other pages wait in line, and the line is short.

A `Watch` follows a model while it works: it reports the layer, and stops the work where no page waits for the answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from dualscope.core.errors import InputError, NotFiniteError

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


MOST_WAITING = 8

Work = Callable[[Watch], None]


class TooMany(Exception):
    """The line is full."""


class Job:
    """Work in the one thread that computes, and what it says, as lines of JSON."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.watch = Watch(self._tell)
        self.future: Future[None] | None = None

    def run(self) -> None:
        """In the computing thread. Whatever happens, the line ends, and the server lives."""
        try:
            self.watch.check()
            self._work(self.watch)
        except Cancelled:
            self._tell({"event": "cancelled"})
        except (InputError, NotFiniteError) as error:
            self._tell({"event": "failed", "reason": str(error)})
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # for the person who started the server; the page gets one line
            self._tell({"event": "failed", "reason": f"a fault of dualscope's own: {type(error).__name__}"})
        finally:
            self._tell(None)

    def _tell(self, event: dict[str, Any] | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._said.put_nowait, event)
        except RuntimeError:  # the server has stopped
            self.watch.cancel()

    async def lines(self) -> AsyncIterator[bytes]:
        """One line an event, until the work ends. A page that goes away cancels its job."""
        try:
            while (event := await self._said.get()) is not None:
                yield json.dumps(event, allow_nan=False).encode() + b"\n"
        finally:
            self.watch.cancel()


class Jobs:
    """The thread that computes, and who waits for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="explorer")
        self._latest: dict[str, Job] = {}
        self._waiting = 0

    def start(self, page: str, work: Work) -> Job:
        """A page's earlier job is cancelled: at the next layer, or before it has begun."""
        if page in self._latest:
            self._latest[page].watch.cancel()
        if self._waiting >= MOST_WAITING:
            raise TooMany
        job = Job(work)
        self._latest[page] = job
        self._waiting += 1
        job.future = self._thread.submit(job.run)
        loop = asyncio.get_running_loop()
        job.future.add_done_callback(lambda _: _soon(loop, self._leave, page, job))
        return job

    def _leave(self, page: str, job: Job) -> None:
        self._waiting -= 1
        if self._latest.get(page) is job:
            del self._latest[page]

    def close(self) -> None:
        for job in self._latest.values():
            job.watch.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop is closed: no page is left to tell
        return
