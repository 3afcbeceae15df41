"""The Ray engine: one actor per model and device, on the cluster at RAY_ADDRESS or on this machine.

The run folder has to be one that every node sees: a shared folder, or an fsspec URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.studies.execute.engines.queue import Queue
from dualscope.studies.execute.jobs import computing_with
from dualscope.studies.execute.outcome import Event
from dualscope.studies.execute.worker import Setting, Work, Worker
from dualscope.studies.run_folder.claims import Claims


class Actor:
    """What runs on a node: a worker, and the events of each piece of work as its answer."""

    def __init__(self, setting: Setting) -> None:
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


def do_all(works: Sequence[Work], setting: Setting, jobs: int, tell: Callable[[Event], None]) -> list[Work]:
    ray = _ray()
    if "://" not in setting.run:  # actors have a working directory of their own
        setting = replace(setting, run=str(Path(setting.run).resolve()))
    started = not ray.is_initialized()
    if started:
        ray.init(
            address=os.environ.get("RAY_ADDRESS") or None,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    try:
        return _dispatch(ray, Queue(works, tell, setting.run), setting, jobs, len(works), tell)
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry; read when ray starts
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'dualscope[ray]'") from None
    return ray


def _dispatch(
    ray: Any, queue: Queue, setting: Setting, jobs: int, pieces: int, tell: Callable[[Event], None]
) -> list[Work]:
    """Keeps every actor busy with one piece at a time; a lost actor's piece goes to a new one."""
    gpus = float(ray.cluster_resources().get("GPU", 0))
    kind = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=0)(Actor)
    most = min(pieces, jobs if jobs > 1 else int(gpus) or sum(node["Alive"] for node in ray.nodes()))
    idle: list[_Member] = []
    at_work: dict[Any, tuple[_Member, Work]] = {}
    claimed: list[Work] = []
    while queue or at_work:
        while queue and len(at_work) < most:
            member = (
                idle.pop() if idle else _Member(kind.options(scheduling_strategy="SPREAD").remote(setting))
            )
            work = queue.next(member.last, [w for _, w in at_work.values()])
            assert work is not None
            at_work[member.actor.do.remote(work)] = (member, work)
        (done,), _ = ray.wait(list(at_work), num_returns=1)
        member, work = at_work.pop(done)
        try:
            had_claim, events = ray.get(done)
        except ray.exceptions.RayActorError as error:
            # The node may be gone with its clock: its claim would look alive for a while yet, so it is ended here.
            Folder.at(setting.run).remove(f"claims/{work.sitting.key}")
            queue.take_back(work, type(error).__name__)
            continue
        for event in events:
            tell(event)
        if not had_claim:
            claimed.append(work)
        member.last = work
        idle.append(member)
    for member in idle:
        ray.kill(member.actor)
    return claimed
