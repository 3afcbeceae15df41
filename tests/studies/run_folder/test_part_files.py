"""The parts of a packed run, read while they are added, and by no thread that outlives the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from dualscope.studies.run_folder import packing
from dualscope.studies.run_folder.packing import pack
from dualscope.studies.run_folder.storage import RunFolder
from tests.studies.run_folder.test_packed_cells import MODELS, NAMES, made, row, told


def test_one_who_watches_sees_what_a_newcomer_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are added, cells stored again and packed again, discarded: what is known of others is kept, and right."""
    monkeypatch.setattr(packing, "CELLS_A_PART", 2)
    run = made(tmp_path / "run")
    assert not run.pack.cells
    for moment in ("packed", "stored again", "packed again", "discarded"):
        if moment == "stored again":
            run.store(NAMES[0], [row(model=MODELS[0], seed=99, value=0.25)], notes={"seconds": "9.0"})
        elif moment == "discarded":
            run.discard(NAMES[1:3])
        else:
            pack(RunFolder.open(tmp_path / "run"), RunFolder.open(tmp_path / "run"))
        assert told(run) == told(RunFolder.open(tmp_path / "run")), moment
        asked = "select cell, count(*) n from rows group by 1 order by 1"
        counted = {one["cell"]: one["n"] for one in run.query(asked).to_pylist()}
        assert counted == {cell: run.rows([cell]).num_rows for cell in run.stored()}, moment
    assert run.stored() == set(NAMES) - set(NAMES[1:3])


THREADS = """
import os, sys
import pyarrow
from dualscope.studies.run_folder.storage import RunFolder
before = os.listdir("/proc/self/task")
run = RunFolder.open(sys.argv[1])
run.rows(), [run.queries(cell) for cell in run.stored() if "without queries" not in run.notes(cell)]
print(len(os.listdir("/proc/self/task")) - len(before))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted where Linux lists them")
def test_reading_leaves_no_thread_that_could_outlive_the_process(tmp_path: Path) -> None:
    """A thread of Arrow's that still holds our bytes when Python ends aborts the process, or keeps it from ending."""
    pack(made(tmp_path / "run"), RunFolder.open(tmp_path / "run"))
    command = [sys.executable, "-c", THREADS, str(tmp_path / "run")]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert said.stdout == "0\n"
