"""Kills of every kind: no row is lost or changed, and nothing is left behind.

On demand there are a hundred (``DUALSCOPE_WHOLE=1``), in the ordinary run one of each kind that a process
meets alone.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dualscope import Run, run_study
from dualscope.commands.shared_options import ended_like_interrupted
from dualscope.studies.run_folder import packing
from tests.studies.children import CONTEXT, files, finish, rows

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
KILLS = 100 if WHOLE else 6  # those of workers and of whole groups are on demand alone: the engine has its own
ALONE = ("at random", "late", "at a rename", "at a link", "at a flush", "by SIGTERM")
TOGETHER = ("a worker", "the parent", "the group")
SIZE = 12


@pytest.fixture(scope="module")
def grid(model_folder: str, task_files: tuple[str, str]) -> dict[str, Any]:
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started from here
    return {
        "models": [model_folder],
        "tasks": list(task_files[:1]),
        "seeds": 4,
        "shots": 4,
        "queries": 12,
        "lr": [0.1],
        "learners": ["gd"],
    }


@pytest.fixture(scope="module")
def whole(grid: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same study, uninterrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    computed, failures = finish(grid, out)
    assert (len(computed), failures) == (SIZE, [])
    return out


def _deadly(call: str, number: int) -> None:
    """This process kills itself at the so-manieth call of a function of the system."""
    plain: Callable[..., Any] = getattr(os, call)
    left = [number]

    def deadly(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if number % 2:  # half of them before it is done, half after
                plain(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **options)

    setattr(os, call, deadly)


def _packer(out: str, call: str, number: int) -> None:
    _deadly(call, number)
    packing.CELLS_A_PART = 3
    packing.pack(Run.open(out), Run.open(out))


def _victim(fields: dict[str, Any], out: str, jobs: int, call: str, number: int) -> None:
    """A run in a group of its own, which kills itself at the so-manieth call of a function of the system."""
    os.setsid()
    os.environ["OMP_NUM_THREADS"] = "1"
    if call:
        _deadly(call, number)
    with ended_like_interrupted():
        run_study(fields, out, device="cpu", jobs=jobs)


def _stored(out: Path) -> dict[str, tuple[int, int]]:
    """Every stored cell with its file's identity: a cell computed again would be another file."""
    try:
        return {entry.name: (entry.inode(), entry.stat().st_mtime_ns) for entry in os.scandir(out / "cells")}
    except FileNotFoundError:
        return {}


def _wait(process: Any, out: Path, ready: Callable[[], bool], most: float = 60.0) -> None:
    end = time.monotonic() + most
    while process.is_alive() and not ready() and time.monotonic() < end:
        time.sleep(0.005)


def _kill(kind: str, grid: dict[str, Any], out: Path, rng: np.random.Generator) -> None:
    """Start the run, and end it (or a part of it) in this way; some end before they are hit."""
    kept = len(_stored(out))
    call = {"at a rename": "replace", "at a link": "link", "at a flush": "fsync"}.get(kind, "")
    jobs = 2 if kind in TOGETHER else 1
    process = CONTEXT.Process(target=_victim, args=(grid, str(out), jobs, call, int(rng.integers(1, 12))))
    process.start()
    if kind == "at random":
        time.sleep(rng.uniform(0, 1.5))
        process.kill()
    elif kind == "late":
        _wait(process, out, lambda: len(_stored(out)) >= SIZE - 1)
        process.kill()
    elif kind == "by SIGTERM":
        _wait(process, out, lambda: len(_stored(out)) > kept)
        process.terminate()
    elif kind in TOGETHER:
        _wait(process, out, lambda: len(_stored(out)) > kept)
        time.sleep(rng.uniform(0, 0.2))
        if kind == "a worker":
            workers = [
                child for child in psutil.Process(process.pid).children() if "spawn_main" in str(child.cmdline())
            ]
            for worker in workers[:1]:
                worker.kill()
        elif kind == "the parent":
            process.kill()
        else:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
    process.join(120)
    assert not process.is_alive(), kind


@pytest.mark.slow
def test_kills(grid: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    alone = [ALONE[i % len(ALONE)] for i in range(KILLS)]
    kinds = [TOGETHER[i // 8 % 3] if i % 8 == 7 else kind for i, kind in enumerate(alone)]
    number, hits = 0, 0
    kept: dict[str, tuple[int, int]] = {}
    out = tmp_path / "run0"
    for kind in kinds:
        if len(kept) == SIZE:  # this one is whole, whatever happened to it: look at it, and begin another
            _check_end(grid, out, whole)
            number, kept = number + 1, {}
            out = tmp_path / f"run{number}"
        _kill(kind, grid, out, rng)
        now = _stored(out)
        assert {name: now.get(name) for name in kept} == kept, f"{kind}: a stored cell was lost or computed again"
        assert not now or Run.open(out).unreadable(name.removesuffix(".parquet") for name in now) == {}
        hits += len(now) < SIZE
        kept = now
    _check_end(grid, out, whole)
    assert hits >= KILLS // 3  # most of them ended a run that had more to do


@pytest.mark.slow
def test_a_packing_that_is_killed(grid: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    """By SIGKILL, at one call of the system after the other: the run is whole then, and packed by the same command."""
    killed = 0
    for number in range(1, 20 if WHOLE else 5):
        for call in ("replace", "fsync"):
            out = Path(shutil.copytree(whole, tmp_path / f"{call}{number}"))
            process = CONTEXT.Process(target=_packer, args=(str(out), call, number))
            process.start()
            process.join(120)
            assert process.exitcode in (0, -signal.SIGKILL)
            killed += process.exitcode == -signal.SIGKILL
            assert rows(out) == rows(whole)
            assert Run.open(out).unreadable(Run.open(out).stored()) == {}
            packing.pack(Run.open(out), Run.open(out))
            assert Run.open(out).loose() == set()
            assert rows(out) == rows(whole)
    assert killed >= 8
    computed, failures = finish(grid, out)
    assert (computed, failures) == ([], [])
    assert rows(out) == rows(whole)


def _check_end(grid: dict[str, Any], out: Path, whole: Path) -> None:
    _, failures = finish(grid, out)
    assert not failures
    assert rows(out) == rows(whole)
    assert _files(out) == _files(whole)


def _files(out: Path) -> list[str]:
    """A run with other jobs has other facts about itself."""
    return [name for name in files(out) if not name.startswith("provenance/")]
