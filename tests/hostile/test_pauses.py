"""A process that stands still (Ctrl-Z, a laptop's lid) at any moment, while another one does the same work: no row is
lost or changed, whoever goes on first.

On demand there are more than sixty pauses (``DUALSCOPE_WHOLE=1``), in the ordinary run a few of each kind.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dualscope import Run, run_study
from dualscope.core.errors import InputError
from dualscope.report import write_report
from dualscope.studies.run_folder import packing
from dualscope.studies.run_folder.packing import pack
from dualscope.studies.run_folder.storage import RunFolder
from tests.studies.children import CONTEXT, finish, rows
from tests.studies.run_folder.test_packed_cells import MODELS, NAMES, made, row, told

WHOLE = bool(os.environ.get("DUALSCOPE_WHOLE"))
CALLS = {"a rename": (os, "replace"), "a creation": (os, "link"), "a deletion": (Path, "unlink")}
LATE = "f" * 20


def _pausing(kind: str, number: int, after: bool) -> None:
    """This process stops itself at the so-manieth call of a function of the system."""
    owner, name = CALLS[kind]
    plain: Callable[..., Any] = getattr(owner, name)
    left = [number]

    def pausing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = plain(*arguments, **options)
        if left[0] == 0 and after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(owner, name, pausing)


def _packer(out: str, *pause: Any) -> None:
    _pausing(*pause)
    packing.CELLS_A_PART = 2
    try:
        pack(RunFolder.open(out), RunFolder.open(out))
    except InputError as error:
        raise SystemExit(2 if "give the same command again" in str(error) else str(error)) from None


def _runner(fields: dict[str, Any], out: str, *pause: Any) -> None:
    import torch

    torch.set_num_threads(1)
    _pausing(*pause)
    run_study(fields, out, device="cpu")


def _reporter(out: str, page: str, *pause: Any) -> None:
    _pausing(*pause)
    write_report([out], page)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _paused(target: Any, *arguments: Any) -> Any:
    """A process that has stopped itself; None where it ended before."""
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    end = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < end:
        if process.pid is not None and _is_stopped(process.pid):
            return process
        time.sleep(0.002)
    assert process.exitcode == 0
    return None


def _expire_claims(out: Path) -> None:
    """As if minutes had passed."""
    for claim in (out / "claims").glob("*"):
        os.utime(claim, (0, 0))


def _go_on(process: Any, *codes: int) -> None:
    os.kill(process.pid, signal.SIGCONT)
    process.join(60)
    assert process.exitcode in codes


PACKS = [
    (kind, number, after)
    for kind, most in (("a rename", 8), ("a creation", 5), ("a deletion", 18))
    for number in range(1, most)
    for after in (False, True)
]
CHOSEN = PACKS if WHOLE else [("a creation", 2, False), ("a creation", 2, True), *PACKS[::28], PACKS[-2]]


@pytest.mark.parametrize(("kind", "number", "after"), CHOSEN)
def test_a_packing_that_stands_still(kind: str, number: int, after: bool, tmp_path: Path) -> None:
    """Meanwhile a cell is finished and another process packs: what the first one does then harms nobody."""
    out = tmp_path / "run"
    made(out)
    process = _paused(_packer, str(out), kind, number, after)
    assert process is not None
    other = RunFolder.open(out)
    other.store(LATE, [row(model=MODELS[0], value=9.0)], pa.table({"query": ["late"]}))
    expected = made(tmp_path / "whole")
    expected.store(LATE, [row(model=MODELS[0], value=9.0)], pa.table({"query": ["late"]}))
    want = _values(expected)
    _expire_claims(out)
    pack(other, other)
    assert _values(RunFolder.open(out)) == want
    _go_on(process, 0, 2)
    found = RunFolder.open(out)
    assert found.stored() == {*NAMES, LATE}
    assert found.unreadable(found.stored()) == {}
    assert _values(found) == want
    pack(found, found)
    assert RunFolder.open(out).loose() == set()
    assert _values(RunFolder.open(out)) == want


def _values(run: RunFolder) -> dict[str, Any]:
    """All that a run says, but for when its cells were stored."""
    return {name: one[:2] + one[3:] if isinstance(one, tuple) else one for name, one in told(run).items()}


@pytest.fixture(scope="module")
def whole(
    model_folder: str, task_files: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """A study and its run, uninterrupted."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started from here
    grid = {"models": [model_folder], "tasks": [task_files[0]], "seeds": 1, "shots": 4, "queries": 12}
    grid |= {"lr": [0.1], "learners": ["gd"]}
    out = tmp_path_factory.mktemp("whole") / "run"
    assert finish(grid, out)[1] == []
    return grid, out


RUNS = [
    (kind, number, after)
    for kind, numbers in (("a rename", range(1, 9)), ("a creation", (1,)), ("a deletion", range(1, 8)))
    for number in numbers
    for after in (False, True)
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number", "after"), RUNS if WHOLE else [RUNS[2], RUNS[16], RUNS[-3]])
def test_a_run_that_stands_still(
    kind: str, number: int, after: bool, whole: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """Meanwhile another process runs the study to its end, and packs it."""
    grid, expected = whole
    out = tmp_path / "run"
    process = _paused(_runner, grid, str(out), kind, number, after)
    assert process is not None
    _expire_claims(out)
    assert finish(grid, out)[1] == []
    assert rows(out) == rows(expected)
    if number % 2:
        pack(Run.open(out), Run.open(out))
    _go_on(process, 0)
    assert rows(out) == rows(expected)
    assert Run.open(out).unreadable(Run.open(out).stored()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_report_that_stands_still(after: bool, whole: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """Meanwhile the run is packed under it: the page that appears is whole."""
    out = Path(shutil.copytree(whole[1], tmp_path / "run"))
    process = _paused(_reporter, str(out), str(tmp_path / "page.html"), "a rename", 1, after)
    assert process is not None
    pack(Run.open(out), Run.open(out))
    write_report([out], str(tmp_path / "second.html"))
    _go_on(process, 0)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert rows(out) == rows(whole[1])
