"""Claims: several processes on one run folder each take what no other is computing.

A claim is a file that names its owner and is touched while the work goes on. It is stale when its owner is
known to be dead, or has not touched it for `STALE` seconds (a host that went away): by the clock of the file
system, or, where the owner's clock is ahead of that, by our own while we watch it.

A claim is a lease: a process that stood still for longer than `STALE` has lost it, and goes on without knowing. So a
holder asks `holds` before it publishes, touches and releases only what is its own, and what must never happen twice is
published by a file that only one can create.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from datetime import datetime
from types import TracebackType

from dualscope.core.folder import ASIDE, Folder, Owner

HEARTBEAT = 10.0
STALE = 90.0


class Claims:
    """The claims of one process on a run folder; a thread keeps those that it holds fresh.

    >>> import tempfile
    >>> folder = Folder(tempfile.mkdtemp())
    >>> with Claims(folder) as claims:
    ...     claims.take("a"), claims.take("a")
    (True, False)
    >>> folder.names("claims")
    []
    """

    def __init__(self, folder: Folder, heartbeat: float = HEARTBEAT, stale: float = STALE) -> None:
        self.folder = folder
        self.heartbeat, self.stale = heartbeat, stale
        self._held: dict[str, bytes] = {}  # what we wrote into each
        # When a claim was last touched, and since when we know that.
        self._seen: dict[str, tuple[float, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="claims", daemon=True)

    def __enter__(self) -> Claims:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self._held):
            self.release(key)

    def take(self, key: str) -> bool:
        """Claim a piece of work; False where another process has it."""
        if key in self._held and self.holds(key):
            return False
        name, mine = f"claims/{key}", self._signature()
        self._held[key] = mine
        try:
            if self.folder.create(name, mine) or (self._clear_stale(name) and self.folder.create(name, mine)):
                return True
        except OSError:  # the file may be there all the same: no process would wait for it
            with contextlib.suppress(OSError):
                self.release(key)
            raise
        del self._held[key]
        return False

    def holds(self, key: str) -> bool:
        """Whether a claim that was taken is still ours: another may have it since, if this process stood still."""
        try:
            return key in self._held and self.folder.read(f"claims/{key}") == self._held[key]
        except FileNotFoundError:
            return False

    def holder(self, key: str) -> str | None:
        """Who has it and since when, for people; None where it can be taken. Nothing is taken or removed."""
        name = f"claims/{key}"
        try:
            content = self.folder.read(name)
            if self._is_stale(name, content):
                return None
        except FileNotFoundError:
            return None
        owner, since = _owner(content), content.decode(errors="replace").splitlines()[2:3]
        return f"{owner or 'another process'}{f' since {since[0]}' if since else ''}"

    def release(self, key: str) -> None:
        try:
            mine = self.holds(key)
        except OSError:  # a disk may fail once: a claim that stays would keep others away until it is stale
            mine = self.holds(key)
        if mine:
            self.folder.remove(f"claims/{key}")
        self._held.pop(key, None)

    def clear_stale(self) -> None:
        """Remove the claims of those who are gone: also on work that was stored before they went, which no
        process takes again.
        """
        for key in self.folder.names("claims"):
            with contextlib.suppress(OSError):  # a full disk; the next run tidies up
                self._clear_stale(f"claims/{key}")

    def _signature(self) -> bytes:
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        return f"{Owner.me().encode()}\n{uuid.uuid4().hex}\n{now}\n".encode()

    def _is_stale(self, name: str, content: bytes) -> bool:
        owner = _owner(content)
        if owner is not None and owner.is_dead():
            return True
        if self.folder.age(name) > self.stale:
            return True
        touched, now = self.folder.written(name), time.monotonic()
        known, since = self._seen.setdefault(name, (touched, now))
        if known != touched:
            self._seen[name] = (touched, now)
            return False
        return now - since > self.stale

    def _clear_stale(self, name: str) -> bool:
        try:
            before = self.folder.read(name)
            if not self._is_stale(name, before):
                return False
        except FileNotFoundError:
            return True
        # Two may judge the same claim stale, and the slower must not remove what the faster has put
        # there since: moving it away tells who was first, and its content whether it is the stale one.
        away = f"{ASIDE}/{Owner.me().encode()}.{uuid.uuid4().hex}"
        if not self.folder.move(name, away):
            return True
        moved = self.folder.read(away)
        self.folder.remove(away)
        if moved != before:
            self.folder.create(name, moved)
            return False
        return True

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self.heartbeat):
            for key in list(self._held):
                # One touch may be missed: there is time for several before the claim is stale.
                with contextlib.suppress(OSError):
                    if self.holds(key):
                        self.folder.touch(f"claims/{key}")


def _owner(content: bytes) -> Owner | None:
    return Owner.decode(content.decode(errors="replace").partition("\n")[0])
