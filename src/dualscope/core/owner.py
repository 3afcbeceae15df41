"""Who wrote a file: so that what a dead process left behind can be told from what a living one is doing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks: tells a process from a later one with the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@dataclass(frozen=True)
class Owner:
    """A process on a host.

    >>> me = Owner.me()
    >>> Owner.decode(me.encode()) == me, me.is_dead()
    (True, False)
    """

    host: str
    pid: int
    started: str

    @classmethod
    def me(cls) -> Owner:
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()))

    def encode(self) -> str:
        return f"{self.pid}.{self.started}.{self.host}"

    @classmethod
    def decode(cls, text: str) -> Owner | None:
        """The owner that `encode` wrote; None where the text is not (or not wholly) one."""
        pid, _, rest = text.partition(".")
        started, dot, host = rest.partition(".")
        return cls(host, int(pid), started) if dot and host and pid.isdigit() else None

    def is_dead(self) -> bool:
        """True only where this is certain: the process was on this host and is gone."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _state(self.pid) == "Z" or _started(self.pid) != self.started


def _state(pid: int) -> str:
    """A killed process whose parent has not asked for its exit status is a zombie (Z): dead, for our ends."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
