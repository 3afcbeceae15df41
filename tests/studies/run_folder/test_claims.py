"""Processes that die, and processes that compete: no result is lost, doubled or changed."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import Run
from tests.studies.children import CONTEXT, files, finish, rows, start


@pytest.fixture(scope="module")
def grid(model_folder: str, task_files: tuple[str, str]) -> dict[str, Any]:
    """48 cells."""
    return {
        "models": [model_folder],
        "tasks": list(task_files),
        "seeds": 4,
        "shots": 4,
        "queries": 12,
        "lr": [0.1],
        "learners": ["gd", "lcgd", "gd/random-update", "null-context"],
    }


@pytest.fixture(scope="module")
def whole(grid: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same study, uninterrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    computed, failures = finish(grid, out)
    assert len(computed) == 48
    assert not failures
    return out


def _stored(out: Path) -> dict[str, tuple[int, int]]:
    """Every stored cell with its file's identity: a cell computed again would be another file."""
    try:
        return {e.name: (e.inode(), e.stat().st_mtime_ns) for e in os.scandir(out / "cells")}
    except FileNotFoundError:
        return {}


@pytest.mark.slow
def test_killed_twenty_times(grid: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    out, rng = tmp_path / "run", np.random.default_rng(0)
    kept: dict[str, tuple[int, int]] = {}
    for _ in range(20):
        process = start(grid, out)
        # Half of the kills fall anywhere from the start on, half soon after a cell was stored.
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 1.0))
        else:
            while process.is_alive() and len(_stored(out)) == len(kept):
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.join()
        now = _stored(out)
        assert {name: now.get(name) for name in kept} == kept, "a stored cell was lost or computed again"
        assert not now or Run.open(out).unreadable(name.removesuffix(".parquet") for name in now) == {}
        kept = now
    computed, failures = finish(grid, out)
    assert not failures
    assert len(computed) == 48 - len(kept)
    assert rows(out) == rows(whole)
    assert files(out) == files(whole)


@pytest.mark.slow
def test_two_at_once(grid: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    outcomes = CONTEXT.Queue()
    processes = [start(grid, tmp_path, outcomes) for _ in range(2)]
    (first, none), (second, nor_here) = (outcomes.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert none == nor_here == []
    assert len(first) + len(second) == len({*first, *second}) == 48
    assert first
    assert second
    assert rows(tmp_path) == rows(whole)
    assert files(tmp_path) == files(whole)


@pytest.mark.slow
def test_one_takes_over_from_a_killed_one(grid: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    outcomes = CONTEXT.Queue()
    victim, heir = start(grid, tmp_path), start(grid, tmp_path, outcomes)
    while victim.is_alive() and not _stored(tmp_path):
        time.sleep(0.01)
    victim.kill()
    victim.join()
    computed, failures = outcomes.get(timeout=300)
    heir.join()
    assert not failures
    assert computed
    assert rows(tmp_path) == rows(whole)
    finish(grid, tmp_path)
    assert files(tmp_path) == files(whole)
