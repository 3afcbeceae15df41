"""The local engine: this process, or several of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from dualscope.core import network
from dualscope.core.environment import environment
from dualscope.core.folder import Folder
from dualscope.models.automatic import on_cpu
from dualscope.studies.execute.engines.queue import Queue
from dualscope.studies.execute.outcome import Event
from dualscope.studies.execute.shared_gpu import shared_gpu
from dualscope.studies.execute.work import Work, WorkerSetup
from dualscope.studies.execute.worker import Worker
from dualscope.studies.execute.worker_count import computing_with
from dualscope.studies.run_folder.claims import Claims

FAREWELL = 5.0  # seconds for a worker to end, after its line is closed


def do_all(works: Sequence[Work], setting: WorkerSetup, jobs: int, tell: Callable[[Event], None]) -> list[Work]:
    # Also for one piece: a worker that dies does not take this process with it.
    if jobs > 1 or setting.isolate:
        with nullcontext() if on_cpu(setting.device) else shared_gpu():
            return _Pool(setting, jobs, tell).do_all(works)
    with computing_with(setting.threads), Claims(Folder.at(setting.run)) as claims:
        worker = Worker(setting, claims, ahead=[work.model for work in works])
        return [work for work in works if not worker.do(work, tell)]


@dataclass
class _Member:
    process: BaseProcess
    line: Connection
    work: Work | None = None
    last: Work | None = None


class _Pool:
    """Processes that are told what to do one piece at a time; a lost one is replaced."""

    def __init__(self, setting: WorkerSetup, jobs: int, tell: Callable[[Event], None]) -> None:
        self.setting, self.jobs, self.tell = setting, jobs, tell
        # Spawned, not forked: a forked child inherits torch's threads in whatever state they are.
        self._context = multiprocessing.get_context("spawn")
        self._members: list[_Member] = []

    def do_all(self, works: Sequence[Work]) -> list[Work]:
        queue, claimed = Queue(works, self.tell, self.setting.run), []
        try:
            while queue or any(member.work for member in self._members):
                self._hand_out(queue)
                for line in wait([member.line for member in self._members if member.work]):
                    member = next(m for m in self._members if m.line is line)
                    try:
                        message = member.line.recv()
                    except (EOFError, OSError):
                        self._lost(member, queue)
                        continue
                    if isinstance(message, bool):  # done: did it have the claim?
                        assert member.work is not None
                        if not message:
                            claimed.append(member.work)
                        work, member.work = member.work, None
                        member.last = work
                        if self.setting.isolate and work.is_foreign:
                            self._retire(member)
                    else:
                        self.tell(message)
        finally:
            self._dismiss()
        return claimed

    def _hand_out(self, queue: Queue) -> None:
        if self.setting.isolate:  # what is left for a plugin's code needs a process that is new
            for member in [one for one in self._members if one.work is None and one.last is not None]:
                if not self._give(member, queue):
                    self._retire(member)
        idle = sum(member.work is None for member in self._members)
        for _ in range(min(len(queue) - idle, self.jobs - len(self._members))):
            self._members.append(self._hire())
        for member in self._members:
            if member.work is None:
                self._give(member, queue)

    def _give(self, member: _Member, queue: Queue) -> bool:
        busy = [m.work for m in self._members if m.work]
        used = self.setting.isolate and member.last is not None
        member.work = queue.next(member.last, busy, lambda work: not (used and work.is_foreign))
        if member.work is None:
            return False
        with contextlib.suppress(OSError):  # a lost worker's line says so at the next wait
            member.line.send(member.work)
        return True

    def _hire(self) -> _Member:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self.setting), daemon=True)
        # numpy's linear algebra reads it when it is imported; it would have a thread a core in every worker.
        with environment({"OMP_NUM_THREADS": str(self.setting.threads)} if self.setting.threads else {}):
            process.start()
        theirs.close()
        return _Member(process, ours)

    def _retire(self, member: _Member) -> None:
        self._members.remove(member)
        member.line.close()
        _end(member.process)

    def _lost(self, member: _Member, queue: Queue) -> None:
        _end(member.process)
        self._members.remove(member)
        code = member.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if member.work is not None:
            queue.take_back(member.work, how)

    def _dismiss(self) -> None:
        for member in self._members:
            member.line.close()
            if member.work is not None:  # interrupted: what it is at is dropped, what it stored stays
                member.process.terminate()
        for member in self._members:
            _end(member.process)


def _end(process: BaseProcess) -> None:
    """Wait for a process that has nothing more to do, and not for threads that a plugin left running in it."""
    process.join(FAREWELL)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(line: Connection, setting: WorkerSetup) -> None:
    """A worker process: does what it is sent until the line closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    with network.offline(setting.offline), computing_with(setting.threads), Claims(Folder.at(setting.run)) as claims:
        worker = Worker(setting, claims)
        while True:
            try:
                work = line.recv()
                line.send(worker.do(work, line.send))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return
