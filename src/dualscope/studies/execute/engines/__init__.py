"""Where work is done: in this process or several (`local`), or on a cluster (`ray`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dualscope.core.registry import Registry

if TYPE_CHECKING:
    from dualscope.studies.execute.work import Event, Work, WorkerSetup

    Engine = Callable[[Sequence[Work], WorkerSetup, int, Callable[[Event], None]], list[Work]]
    """Does the work with so many jobs, tells what happens, and returns what other processes had claimed."""

ENGINES: Registry[Engine] = Registry("engine")


@ENGINES.register("local")
def _local(works: Sequence[Work], setting: WorkerSetup, jobs: int, tell: Callable[[Event], None]) -> list[Work]:
    """Processes on this machine."""
    from dualscope.studies.execute.engines.local import do_all

    return do_all(works, setting, jobs, tell)


@ENGINES.register("ray")
def _ray(works: Sequence[Work], setting: WorkerSetup, jobs: int, tell: Callable[[Event], None]) -> list[Work]:
    """Actors on a Ray cluster: the one at RAY_ADDRESS, or one of this machine."""
    from dualscope.studies.execute.engines.ray import do_all

    return do_all(works, setting, jobs, tell)
