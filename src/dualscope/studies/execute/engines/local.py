"""The local engine: this process, or several of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from dualscope.core import network
from dualscope.core.command_hints import environment
from dualscope.core.folder import Folder
from dualscope.models.loading.automatic_precision import on_cpu
from dualscope.studies.execute.work import Event, Queue, Work, WorkerSetup
from dualscope.studies.execute.worker import Worker
from dualscope.studies.execute.worker_count import computing_with
from dualscope.studies.run_folder.claims import Claims

# Several processes that compute on one NVIDIA GPU at once, and not in turns.
#
# By itself a GPU computes for one process at a time, a few milliseconds each, and the small kernels of a small model
# leave most of it idle in every turn. NVIDIA's multi-process service lets them run side by side; what is computed
# stays the same.


CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps")  # where a service listens that was started without a place of its own
PATIENCE = 20.0  # seconds, for a service to begin or to end

# Its own process, which ends the service when its input does: also when the one that asked for it is killed.
KEEPER = """
import subprocess, sys
control, patience = sys.argv[1], float(sys.argv[2])
# Output goes nowhere: a daemon would keep a pipe open, and be waited for.
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": patience}
begun = subprocess.run([control, "-d"], stdin=subprocess.DEVNULL, **quiet).returncode == 0
print("begun" if begun else "refused", flush=True)
sys.stdin.read()
subprocess.run([control], input=b"quit\\n", **quiet)
"""
# The driver's own library, because importing torch to try it would take longer than what is tried.
TRIAL = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
device, context, room = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0
assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(room), ctypes.c_size_t(1024)) == 0
assert driver.cuMemsetD8_v2(room, ctypes.c_ubyte(1), ctypes.c_size_t(1024)) == 0
assert driver.cuCtxSynchronize() == 0
"""


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """Inside, processes that are started share a GPU through a service of their own, which ends with this one.

    Gives whether they do. A service that was started elsewhere is used as it is.
    """
    if PIPES in os.environ or (USUAL / "control").exists():
        yield True
        return
    if shutil.which(CONTROL) is None:
        yield False
        return
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="dualscope-", ignore_cleanup_errors=True))
        stack.enter_context(environment({PIPES: folder, LOGS: folder}))
        works = stack.enter_context(_service())
        if not works:
            stack.enter_context(environment({PIPES: None, LOGS: None}))
        yield works


@contextmanager
def _service() -> Iterator[bool]:
    """A service for the places in the environment; gives whether a process could compute through it."""
    # Of the GPUs that are visible to it a service makes a numbering of its own: it sees all, its clients choose.
    everything = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, CONTROL, str(PATIENCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=everything,
        start_new_session=True,  # Ctrl-C is for the workers: they still need it to end what they are at
    )
    try:
        assert keeper.stdout is not None
        yield keeper.stdout.readline() == b"begun\n" and _is_usable()
    finally:
        keeper.communicate()  # its input ends, and then it does


def _is_usable() -> bool:
    try:
        command = [sys.executable, "-c", TRIAL]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0
    except subprocess.TimeoutExpired:
        return False


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
            if member.work is not None:  # interrupted: unfinished work is dropped, stored work stays
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
    """A worker process: does the work that it is sent until the line closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    with network.offline(setting.offline), computing_with(setting.threads), Claims(Folder.at(setting.run)) as claims:
        worker = Worker(setting, claims)
        while True:
            try:
                work = line.recv()
                line.send(worker.do(work, line.send))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return
