"""The Ray engine: actors with the GPUs that their model needs, on the cluster at RAY_ADDRESS or on this machine.

The run folder has to be one that every node sees: a shared folder, or an fsspec URL.

A cluster of this machine is for this run and its owner alone: its token is in no file and on no command line, its
sockets and logs are in a folder that only its owner can enter, and it has no dashboard, which would ask the network in
which cloud it stands.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.core.untrusted_files import reason
from dualscope.studies.execute.work import Event, Outcome, Queue, Work, WorkerSetup
from dualscope.studies.execute.worker import Worker
from dualscope.studies.execute.worker_count import computing_with
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.storage import RunFolder

LOOK, SILENCE, FAREWELL = 5.0, 20.0, 5.0  # seconds: between looks, for an answer, for a shutdown


class Actor:
    """What runs on a node: a worker, and the events of each piece of work as its answer."""

    def __init__(self, setting: WorkerSetup, asked: float = 0.0) -> None:
        import torch

        device = devices_for(asked, setting.device, torch.cuda.device_count())
        setting = replace(setting, device=device)
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
    gpus: float = 0.0
    last: Work | None = None


class ClusterLost(Exception):
    """The cluster is gone: nothing that it was given will ever be answered."""


def do_all(works: Sequence[Work], setting: WorkerSetup, jobs: int, tell: Callable[[Event], None]) -> list[Work]:
    ray = _ray()
    if "://" not in setting.run:  # actors have a working directory of their own
        setting = replace(setting, run=str(Path(setting.run).resolve()))
    with ExitStack() as life:
        if not ray.is_initialized():
            life.enter_context(_cluster(ray))
        open_ = dict.fromkeys(works)
        try:
            queue = Queue(sorted(works, key=lambda work: -work.memory), tell, setting.run)
            return _dispatch(ray, queue, setting, jobs, open_, tell)
        except (ClusterLost, ray.exceptions.RaySystemError, ConnectionError) as error:
            run = RunFolder(Folder.at(setting.run))
            for work in open_:
                left = [(cell.id, str(cell)) for cell in work.cells if not run.has(cell.id)]
                for key, about in left if work.cells else [(work.claimed.key, str(work.claimed))]:
                    tell(Outcome(key, about, "failed", reason=f"the Ray cluster was lost ({reason(error)})"))
            return []


def _ray() -> Any:
    # Ray's sockets are open to the network: a token guards those of our own cluster. Another's has a mode of its own.
    # In the environment other users cannot read it; Ray's own file of it they can.
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    _check_token_file()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would end this process after a minute without its head: we notice earlier, and end in order.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'dualscope[ray]'") from None
    return ray


def _check_token_file() -> None:
    """A token that others can read lets them run code as its owner. Without a mode Ray uses no token."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_MODE", "disabled").lower() != "token":
        return
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        mode = file.stat().st_mode
    except OSError:  # Ray says that there is none
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(
            f"--engine ray: other users may read the cluster's token, {file}, and run code as you with it: "
            f"chmod 600 {file}, and make a new token if you share this machine"
        )


@contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    """Inside, this process is connected to the cluster at RAY_ADDRESS, or to one of this machine that is started for
    this run. Afterwards nothing of the latter is left, also after an interruption.
    """
    others = psutil.Process().children(recursive=True)
    address = os.environ.get("RAY_ADDRESS") or None
    with ExitStack() as kept:
        # Ray makes its own folder open to all users, so we put it into one that only its owner can enter.
        room = None if address else tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR") or _short())
        if room is not None:
            kept.callback(shutil.rmtree, room, ignore_errors=True)
        kept.callback(_leave, ray, others)
        _connect(ray, address, room)
        yield


def _short() -> str | None:
    """A folder with a short name, where there is one: the names of sockets are short."""
    return "/tmp" if os.path.isdir("/tmp") else None


def _connect(ray: Any, address: str | None, room: str | None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        else:
            _without_dashboard()
            _with_token()
            ray.init(
                address="local",  # not one that a file in a common folder names
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=f"{room}/ray",
            )
    except Exception as error:  # Ray raises what its many layers raise
        where = f"the cluster at RAY_ADDRESS={address} cannot be reached" if address else "no cluster can be started"
        raise InputError(f"--engine ray: {where} ({reason(error)})") from error
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)  # Ray's handler would end this process on the spot


def _without_dashboard() -> None:
    """Ray starts the dashboard's process also where none is wanted, for the sake of its statistics of use. It asks the
    network in which cloud it is, whether these are switched off or not; nothing here needs it.
    """
    from ray._private.node import Node

    if not hasattr(Node, "start_api_server"):
        raise InputError("--engine ray: this version of Ray is not known here; pip install 'dualscope[ray]'")
    setattr(Node, "start_api_server", _start_nothing)  # noqa: B010 (it is typed as what may not be replaced)


def _with_token() -> None:
    """Ray reads whether there are tokens when it is imported. Where that was before us (in a notebook, by a plugin) it
    is made to read it again: else this process would have no token for the cluster that it starts.
    """
    if os.environ["RAY_AUTH_MODE"].lower() != "token":  # as the user wants it
        return
    compiled: Any = import_module("ray._raylet")  # which has no types
    if compiled.get_authentication_mode() != compiled.AuthenticationMode.TOKEN:
        compiled.Config.initialize("")
        compiled.AuthenticationTokenLoader.instance().reset_cache()


def _start_nothing(_node: Any, **_options: Any) -> None:
    return None


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


def _leave(ray: Any, others: Sequence[psutil.Process]) -> None:
    """Leave the cluster. Whatever of it runs here for this run is ended, also where it does not answer."""
    started = [one for one in psutil.Process().children(recursive=True) if one not in others]
    atexit.unregister(ray.shutdown)  # it would wait for an answer
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(FAREWELL)
    _, alive = psutil.wait_procs([one for one in started if _is_rays(one)], timeout=1.0)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _is_rays(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "ray" in " ".join(process.cmdline())
    return False


def _dispatch(
    ray: Any, queue: Queue, setting: WorkerSetup, jobs: int, open_: dict[Work, None], tell: Callable[[Event], None]
) -> list[Work]:
    """Keeps every actor busy with one piece at a time; a lost actor's piece goes to a new one.

    ``open_`` is what has not ended: a piece leaves it when it does.
    """
    crew = _Crew(ray, setting, jobs)
    at_work: dict[Any, tuple[_Member, Work]] = {}
    claimed: list[Work] = []
    while queue or at_work:
        crew.hand_out(queue, at_work)
        if not at_work:  # all that was left was refused
            break
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
            Folder.at(setting.run).remove(f"claims/{work.claimed.key}")
            queue.take_back(work, type(error).__name__)
            continue
        for event in events:
            tell(event)
        open_.pop(work, None)
        if not had_claim:
            claimed.append(work)
        member.last = work
        crew.idle.append(member)
        if setting.isolate and work.is_foreign:
            crew.dismiss(member)
    while crew.idle:
        crew.dismiss(crew.idle[0])
    return claimed


class _Crew:
    """The actors: each with the GPUs that its kind of model needs, the largest models first."""

    def __init__(self, ray: Any, setting: WorkerSetup, jobs: int) -> None:
        self.ray, self.setting = ray, setting
        with_gpus = not setting.device.startswith("cpu")
        self.gpus = float(ray.cluster_resources().get("GPU", 0)) if with_gpus else 0.0
        self.one = smallest_gpu(ray) if self.gpus else 0
        self.on_a_node = largest_node(ray)
        nodes = sum(node["Alive"] for node in ray.nodes())
        self.most = float(jobs) if jobs > 1 else math.inf if self.gpus else float(nodes)
        self.idle: list[_Member] = []

    def asks(self, work: Work) -> float:
        return gpus_for(work.memory, self.one) if self.gpus else 0.0

    def hand_out(self, queue: Queue, at_work: dict[Any, tuple[_Member, Work]]) -> None:
        """As much as there is room for. Actors that wait give way to those that other models need."""
        for member in list(self.idle):
            found = queue.next(member.last, _works(at_work), self._for(member))
            if found is not None:
                self.idle.remove(member)
                at_work[member.actor.do.remote(found)] = (member, found)
            elif self.setting.isolate:  # what is left for a plugin's code needs an actor that is new
                self.dismiss(member)
        while len(at_work) < self.most:
            free = self.gpus - sum(member.gpus for member, _ in at_work.values()) + 1e-6
            work = queue.next(None, _works(at_work), self._within(free))
            if work is None:
                return
            asked = self.asks(work)
            if not self._fits(work):
                queue.refuse(
                    work,
                    f"it needs about {work.memory / 2**30:.0f} GiB on {asked:g} GPUs of this cluster, and no node has "
                    f"more than {self.on_a_node:g}; use a smaller --dtype (bfloat16), fewer --shots or larger nodes",
                )
                continue
            while self.idle and sum(member.gpus for member in self.idle) + asked > free:
                self.dismiss(self.idle[0])
            member = _Member(self._hire(asked), asked)
            at_work[member.actor.do.remote(work)] = (member, work)

    def _for(self, member: _Member) -> Callable[[Work], bool]:
        """What an actor that has worked before can do."""
        return lambda work: self.asks(work) == member.gpus and not (self.setting.isolate and work.is_foreign)

    def _within(self, free: float) -> Callable[[Work], bool]:
        """What there is room for now; what there is never room for too, so that it is refused."""
        return lambda work: self.asks(work) <= free or not self._fits(work)

    def _fits(self, work: Work) -> bool:
        return not self.gpus or self.asks(work) <= self.on_a_node

    def _hire(self, asked: float) -> Any:
        kind = self.ray.remote(num_cpus=1, num_gpus=asked, max_restarts=0)(Actor)
        # Parts of GPUs side by side, so that whole ones stay free for large models.
        strategy = "SPREAD" if asked in (0.0, 1.0) else "DEFAULT"
        return kind.options(scheduling_strategy=strategy).remote(self.setting, asked)

    def dismiss(self, member: _Member) -> None:
        self.idle.remove(member)
        self.ray.kill(member.actor)


def _works(at_work: Mapping[Any, tuple[_Member, Work]]) -> list[Work]:
    return [work for _, work in at_work.values()]


# How many GPUs an actor asks for: as many as its model needs, or a part of one that several share.


USABLE = 0.9  # of a GPU's memory: the rest is its driver's, and the estimate's error
MOST_ON_ONE = 8  # actors: each also computes
PATIENCE = 60.0  # seconds, for a node to say what it has


def gpus_for(needed: int, one: int) -> float:
    """Of GPUs with ``one`` bytes each, for ``needed`` bytes; one where either is not known (0).

    >>> gpus_for(200 * 2**30, 140 * 2**30), gpus_for(30 * 2**30, 140 * 2**30), gpus_for(0, 140 * 2**30)
    (2.0, 0.25, 1.0)
    """
    if not needed or not one:
        return 1.0
    usable = USABLE * one
    if needed > usable:
        return float(math.ceil(needed / usable))
    # Ray counts in ten-thousandths, and k of them must not be more than one.
    return math.floor(1e4 / min(MOST_ON_ONE, int(usable // needed))) / 1e4


def devices_for(asked: float, device: str, visible: int) -> str:
    """The devices of an actor that was given so many GPUs: all of them, where its model needs several.

    The weights alone may fit on one, and would then go there; what is trained and read beside them would not.

    >>> devices_for(2.0, "auto", visible=2), devices_for(0.25, "auto", visible=1), devices_for(2.0, "cuda:1", visible=2)
    ('cuda:0,cuda:1', 'auto', 'cuda:1')
    """
    if asked < 2 or device not in ("auto", "cuda") or visible < asked:
        return device
    return ",".join(f"cuda:{i}" for i in range(int(asked)))


def smallest_gpu(ray: Any) -> int:
    """Bytes of the cluster's smallest GPU, as its nodes say; 0 where none of them can say it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, num_gpus=1e-3, max_retries=0)(_memory_here)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=PATIENCE) if asked else ([], [])
    return min((found for found in ray.get(done) if found), default=0)


def largest_node(ray: Any) -> float:
    """The most GPUs that one node has: an actor lives on one."""
    return max((float(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]), default=0.0)


def _memory_here() -> int:
    import torch

    from dualscope.models.loading.device_and_precision import total_memory

    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return min((total_memory(device) for device in devices), default=0)
