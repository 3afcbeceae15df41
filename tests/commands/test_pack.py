"""``dualscope pack``: the run is read, reported and gone on with as before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualscope import Run


@pytest.fixture(scope="module")
def command(model_folder: str, task_files: tuple[str, str]) -> tuple[Any, ...]:
    return (
        *("run", "--model", model_folder, "--task", task_files[0], "--task", task_files[1], "--shots", 4),
        *("--queries", 12, "--lr", 0.1, "--learner", "gd", "--variant", "trained", "--device", "cpu", "--jobs", 1),
    )


def test_a_packed_run_goes_on(cli: Callable[..., Any], command: tuple[Any, ...], tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = cli(*command, "--seeds", 2, "--out", out)
    assert first.code == 0, first.err
    page = (out / "report.html").read_text()
    count = len(Run.open(out).stored())
    packed = cli("pack", out)
    assert (packed.code, packed.err) == (0, "")
    assert f"{count} cells packed into 2 parts" in packed.out
    assert not list((out / "cells").iterdir())
    card = (out / "packed" / "README.md").read_text()
    assert f"{count} cells of one study" in card
    assert "| `shots` | `4` |" in card
    assert "0 cells packed" in cli("pack", out).out
    (out / "summary.csv").unlink()
    (out / "verdict.json").unlink()
    assert cli("report", out).code == 0
    assert (out / "report.html").read_text() == page
    again = cli(*command, "--seeds", 2, "--out", out, "--no-report")
    assert f"{count} cells, 0 computed now" in again.out
    more = cli(*command, "--seeds", 3, "--out", out, "--no-report")
    assert f"{count * 3 // 2} cells, {count // 2} computed now" in more.out
    assert len(Run.open(out).loose()) == count // 2
    elsewhere = cli("pack", out, "--out", tmp_path / "copy")
    assert f"{count * 3 // 2} cells packed" in elsewhere.out
    assert cli("report", tmp_path / "copy").code == 0
    assert repr(Run.open(tmp_path / "copy").rows().to_pydict()) == repr(Run.open(out).rows().to_pydict())


def test_what_is_refused(cli: Callable[..., Any], tmp_path: Path) -> None:
    assert "not a run folder" in cli("pack", tmp_path).err
    Run.create(tmp_path / "run").store("a", [])
    file = tmp_path / "file"
    file.touch()
    for out in ("", file):
        result = cli("pack", tmp_path / "run", "--out", out)
        assert (result.code, "--out" in result.err) == (2, True)
    assert "no-such" in cli("pack", tmp_path / "run", "--out", "no-such://x").err
