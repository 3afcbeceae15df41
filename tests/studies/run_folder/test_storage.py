"""The run folder: whole files, exports, claims."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dualscope import run_study
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder, Owner, _started
from dualscope.core.rows import COLUMNS
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.storage import RunFolder, stored_texts
from dualscope.tasks import Episode, Task

ROW = {**dict.fromkeys(COLUMNS), "model": "m", "task": "t", "learner": "gd", "metric": "accuracy", "n": 3}
PLACES = ["local", "memory://dualscope-test"]


@pytest.fixture(params=PLACES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    """A run in a folder, and one behind an fsspec URL."""
    place = tmp_path / "run" if request.param == "local" else f"{request.param}/{tmp_path.name}"
    run = RunFolder.create(place)
    queries = pa.table({"query": ["a", "b"], "accuracy": [1.0, 0.0]})
    run.store("b", [ROW | {"value": 0.5}], queries=queries, notes={"seconds": "1.5"})
    run.store("a", [ROW | {"value": float("nan"), "layer": 0}], queries=queries)
    return run


def test_rows_come_in_the_order_of_ids_with_the_documented_columns(run: RunFolder) -> None:
    assert run.rows().column_names == list(COLUMNS)
    assert run.rows()["layer"].to_pylist() == [0, None]
    assert run.stored() == {"a", "b"}
    assert run.notes("b") == {"seconds": "1.5"}


def test_queries_and_exports(run: RunFolder) -> None:
    assert run.query("select count(*) as n from rows where metric = 'accuracy'").to_pylist() == [{"n": 2}]
    assert run.query("select avg(accuracy) as a from queries").to_pylist() == [{"a": 0.5}]
    assert run.table(learner="gd", layer=None).num_rows == 1
    assert len(run.to_pandas()) == len(run.to_polars()) == run.to_arrow().num_rows == 2
    with pytest.raises(InputError, match="no column 'learners'"):
        run.table(learners="gd")


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "{run1,x}", "it's"])
def test_a_query_reads_its_own_run_alone(tmp_path: Path, name: str) -> None:
    """Names that a shell would take for patterns of ``run1``."""
    for value, place in ((1.0, "run1"), (2.0, name)):
        RunFolder.create(tmp_path / place).store("a", [ROW | {"value": value}], queries=pa.table({"query": [place]}))
    run = RunFolder.open(tmp_path / name)
    assert run.query("select cell, value from rows").to_pylist() == [{"cell": "a", "value": 2.0}]
    assert run.query("select cell, query from queries").to_pylist() == [{"cell": "a", "query": name}]


def test_failures_are_kept_until_the_cell_is_stored(run: RunFolder) -> None:
    run.fail("c", "why\n\ntraceback")
    assert run.failures() == {"c": "why\n\ntraceback"}
    run.store("c", [ROW])
    assert run.failures() == {}


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    run.store("a", [ROW | {"value": float(i)} for i in range(500)])
    file = tmp_path / "cells/a.parquet"
    whole = bytearray(file.read_bytes())
    assert run.unreadable(["a"]) == {}
    for damaged in (whole[:50], b"", bytes(whole[:30]) + b"\x00\x01\x02\x03" * 9 + bytes(whole[66:])):
        file.write_bytes(damaged)
        assert set(run.unreadable(["a"])) == {"a"}


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path)

    def writer(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        folder.write_by("a/b", writer)
    assert folder.names("a") == folder.names("aside") == []


def test_sweeping_takes_what_the_dead_left_and_no_more(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    alive = Owner.me()
    mortal = replace(alive, pid=child.pid, started=_started(child.pid))
    (tmp_path / "aside").mkdir()
    for owner in (alive, mortal):
        (tmp_path / "aside" / f"{owner.encode()}.x").touch()
    folder = Folder(tmp_path)
    folder.sweep(60)
    assert len(folder.names("aside")) == 2
    child.kill()
    child.wait()
    folder.sweep(60)
    assert folder.names("aside") == [f"{alive.encode()}.x"]


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        RunFolder.open(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="is a file"):
        RunFolder.create(file)
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder.create(file / "run")


@pytest.fixture
def dead() -> bytes:
    """The claim of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return f"{replace(Owner.me(), pid=process.pid, started='1').encode()}\nx\n".encode()


def test_the_claims_of_the_dead_are_cleared_and_no_more(tmp_path: Path, dead: bytes) -> None:
    folder = Folder(tmp_path)
    folder.write("claims/b", dead)
    with Claims(folder) as mine:
        assert mine.take("a")
        Claims(folder).clear_stale()
        assert folder.names("claims") == ["a"]


def test_one_claim_at_a_time_and_the_dead_hold_none(tmp_path: Path, dead: bytes) -> None:
    folder = Folder(tmp_path)
    with Claims(folder) as mine, Claims(folder) as other:
        assert mine.take("a")
        assert not other.take("a")
        mine.release("a")
        assert other.take("a")
        folder.write("claims/b", dead)
        assert mine.take("b")
    assert folder.names("claims") == []


def test_a_claim_of_a_silent_host_goes_stale(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("claims/a", f"{replace(Owner.me(), boot='another').encode()}\nx\n".encode())
    with Claims(folder, stale=3600) as claims:
        assert not claims.take("a")
        old = time.time() - 7200
        os.utime(tmp_path / "claims/a", (old, old))
        assert claims.take("a")


def test_a_process_with_a_dead_ones_number_is_another(tmp_path: Path) -> None:
    assert replace(Owner.me(), started="1").is_dead()
    assert not Owner.me().is_dead()


STUDY = {"tasks": ["embedded-sst2"], "learners": ["gd"], "lr": [0.1], "shots": 2, "queries": 5, "seeds": 2}


def test_texts_are_kept_once_and_are_the_prompts(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path / "run")
    (found,) = stored_texts(RunFolder.open(tmp_path / "run"))
    task = Task.load("embedded-sst2")
    episode = Episode.draw(task, shots=2, seed=1, queries=5)
    assert found.task == "embedded-sst2"
    assert found.labels == task.labels
    assert found.by_query == {query.id: task.prompt(query) for query in episode.queries}


def test_no_texts(tmp_path: Path) -> None:
    run_study({**STUDY, "texts": False, "seeds": 1}, tmp_path / "run")
    assert stored_texts(RunFolder.open(tmp_path / "run")) == []
