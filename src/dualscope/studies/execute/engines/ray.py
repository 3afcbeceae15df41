"""The Ray engine: one actor per model and device, on the cluster at RAY_ADDRESS or on this machine.

The run folder has to be one that every node sees: a shared folder, or an fsspec URL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.core.strangers import reason
from dualscope.studies.execute.engines.queue import Queue
from dualscope.studies.execute.jobs import computing_with
from dualscope.studies.execute.outcome import Event, Outcome
from dualscope.studies.execute.work import Work, WorkerSetup
from dualscope.studies.execute.worker import Worker
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.storage import Run

LOOK, SILENCE, FAREWELL = 5.0, 20.0, 5.0  # seconds: between looks, for an answer, for a shutdown


class Actor:
    """What runs on a node: a worker, and the events of each piece of work as its answer."""

    def __init__(self, setting: WorkerSetup) -> None:
        self.life = ExitStack()  # a lost actor's claims go stale
        self.life.enter_context(network.offline(setting.offline))
        self.life.enter_context(computing_with(setting.threads))
        self.claims = self.life.enter_context(Claims(Folder.at(setting.run)))
        self.worker = Worker(setting, self.claims)

    def do(self, work: Work) -> tuple[bool, list[Event]]:
        events: list[Event] = []
        return self.worker.do(work, events.append), events


@dataclass
class _Member:
    actor: Any
    node: str = ""
    last: Work | None = None


class ClusterLost(Exception):
    """The cluster is gone: nothing that it was given will ever be answered."""


def do_all(
    works: Sequence[Work], setting: WorkerSetup, jobs: int, tell: Callable[[Event], None]
) -> list[Work]:
    ray = _ray()
    if "://" not in setting.run:  # actors have a working directory of their own
        setting = replace(setting, run=str(Path(setting.run).resolve()))
    others = psutil.Process().children(recursive=True)
    started = not ray.is_initialized()
    if started:
        _connect(ray)
    open_ = dict.fromkeys(works)
    try:
        claimed = _dispatch(ray, Queue(works, tell, setting.run), setting, jobs, open_, tell)
    except (ClusterLost, ray.exceptions.RaySystemError, ConnectionError) as error:
        run = Run(Folder.at(setting.run))
        for work in open_:
            left = [(cell.id, str(cell)) for cell in work.cells if not run.has(cell.id)]
            for key, about in left if work.cells else [(work.sitting.key, str(work.sitting))]:
                tell(Outcome(key, about, "failed", reason=f"the Ray cluster was lost ({reason(error)})"))
        _abandon(ray, others)
        return []
    if started:
        ray.shutdown()
    return claimed


def _ray() -> Any:
    # Ray's sockets are open to the network: a token guards those of our own cluster. Another's has a mode of its own.
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would end this process after a minute without its head: we notice earlier, and end in order.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'dualscope[ray]'") from None
    return ray


def _connect(ray: Any) -> None:
    """To the cluster at RAY_ADDRESS, or to one of this machine that is started for this run."""
    address = os.environ.get("RAY_ADDRESS") or None
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            configure_logging=False,
        )
    except Exception as error:  # Ray raises what its many layers raise
        where = (
            f"the cluster at RAY_ADDRESS={address} cannot be reached"
            if address
            else "no cluster can be started"
        )
        raise InputError(f"--engine ray: {where} ({reason(error)})") from error


def _check_alive(ray: Any) -> None:
    """Ask the cluster's head for its nodes, and wait for the answer no longer than `SILENCE`."""
    found: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            found.append([node for node in ray.nodes() if node["Alive"]])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SILENCE)
    if not found:
        raise ClusterLost(f"its head has not answered for {SILENCE:.0f} seconds")
    if not found[0]:
        raise ClusterLost("none of its nodes is alive")


def _abandon(ray: Any, others: Sequence[psutil.Process]) -> None:
    """Leave a cluster that does not answer; what of it runs here for this run is ended."""
    atexit.unregister(ray.shutdown)  # it would wait for an answer
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(FAREWELL)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process not in others and "ray" in " ".join(process.cmdline()):
                process.kill()


def _dispatch(
    ray: Any,
    queue: Queue,
    setting: WorkerSetup,
    jobs: int,
    open_: dict[Work, None],
    tell: Callable[[Event], None],
) -> list[Work]:
    """Keeps every actor busy with one piece at a time; a lost actor's piece goes to a new one.

    ``open_`` is what has not ended: a piece leaves it when it does.
    """
    gpus = float(ray.cluster_resources().get("GPU", 0))
    kind = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=0)(Actor)
    most = min(len(queue), jobs if jobs > 1 else int(gpus) or sum(node["Alive"] for node in ray.nodes()))
    idle: list[_Member] = []
    at_work: dict[Any, tuple[_Member, Work]] = {}
    claimed: list[Work] = []
    while queue or at_work:
        while len(at_work) < most:
            member = idle.pop() if idle else None
            work = queue.next(member.last if member else None, [w for _, w in at_work.values()])
            if work is None:
                idle += [member] if member else []
                break
            if member is None:
                member = _Member(kind.options(scheduling_strategy="SPREAD").remote(setting))
            at_work[member.actor.do.remote(work)] = (member, work)
        done, _ = ray.wait(list(at_work), num_returns=1, timeout=LOOK)
        if not done:
            _check_alive(ray)
            continue
        member, work = at_work.pop(done[0])
        try:
            had_claim, events = ray.get(done[0])
        except ray.exceptions.RayActorError as error:
            _check_alive(ray)
            # The node may be gone with its clock: its claim would look alive for a while yet, so it is ended here.
            Folder.at(setting.run).remove(f"claims/{work.sitting.key}")
            queue.take_back(work, type(error).__name__)
            continue
        for event in events:
            tell(event)
        open_.pop(work, None)
        if not had_claim:
            claimed.append(work)
        member.last = work
        idle.append(member)
    for member in idle:
        ray.kill(member.actor)
    return claimed
