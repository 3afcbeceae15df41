"""Who wrote a file: so that what a dead process left behind can be told from what a living one is doing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


@cache
def _boot() -> str:
    """Of one start of one kernel: hosts with the same name, and a host before and after a restart, differ in it."""
    try:
        return BOOT.read_text().strip()
    except OSError:  # not Linux
        return str(int(psutil.boot_time()))


def _namespace() -> str:
    """In which numbers of processes are counted: another container's process 7 is not ours."""
    try:
        return str(NAMESPACE.stat().st_ino)
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """When a process began, in hundredths of a second after the machine did: tells it from a later one with the same
    number.
    """
    return str(round(100 * (psutil.Process(pid).create_time() - psutil.boot_time())))


@dataclass(frozen=True)
class Owner:
    """A process: its number and start, in which namespace and boot they count, and for people the host.

    >>> me = Owner.me()
    >>> Owner.decode(me.encode()) == me, me.is_dead()
    (True, False)
    """

    pid: int
    started: str
    namespace: str
    boot: str
    host: str

    @classmethod
    def me(cls) -> Owner:
        pid = os.getpid()
        return cls(pid, _started(pid), _namespace(), _boot(), socket.gethostname())

    def encode(self) -> str:
        return f"{self.pid}.{self.started}.{self.namespace}.{self.boot}.{self.host}"

    @classmethod
    def decode(cls, text: str) -> Owner | None:
        """The owner that `encode` wrote; None where the text is not (or not wholly) one."""
        pid, *rest = text.split(".", 4)
        if len(rest) != 4 or not pid.isascii() or not pid.isdigit() or not all(rest):
            return None
        return cls(int(pid), *rest)

    def is_near(self) -> bool:
        """Whether its number means something here: the same boot of the same machine, and the same namespace."""
        return (self.boot, self.namespace) == (_boot(), _namespace())

    def is_dead(self) -> bool:
        """True only where this is certain: its number can be looked up here, and it is gone or another's."""
        if not self.is_near():
            return False
        try:
            # A killed process whose parent has not asked for its exit status is a zombie: dead, for our ends.
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE or _started(self.pid) != self.started
        except psutil.NoSuchProcess:
            return not psutil.pid_exists(self.pid)  # another user's may be hidden, and there
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"
