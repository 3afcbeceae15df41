"""Whole runs, which tests copy and damage."""

from pathlib import Path
from typing import NamedTuple

import pytest

from dualscope import Run


class Made(NamedTuple):
    """A whole run: the command that made it, its folder, and its rows."""

    command: tuple[str, ...]
    folder: Path
    rows: str


@pytest.fixture(scope="session")
def made(model_folder: str, task_files: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    found = _run(
        tmp_path_factory.mktemp("damage") / "whole",
        *("--model", model_folder, "--task", task_files[0], "--seeds", "1", "--shots", "4", "--lr", "auto"),
    )
    run = Run.open(found.folder)
    run.fail("f" * 20, "it failed before")
    run.folder.write("claims/old", b"99999999.1.1.x.elsewhere\n")
    run.folder.write("aside/99999999.1.1.x.elsewhere.0", b"half")
    return found


@pytest.fixture(scope="session")
def responded(model_folder: str, task_files: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One with responses."""
    return _run(
        tmp_path_factory.mktemp("responses") / "whole",
        *("--model", model_folder, "--task", task_files[0], "--seeds", "1", "--shots", "8", "--lr", "0.1"),
        *("--intervention", "relabel"),
    )


def _run(folder: Path, *options: str) -> Made:
    from dualscope.cli import app

    sizes = ("--queries", "12", "--learner", "gd", "--save-traces", "--device", "cpu", "--jobs", "1")
    command = ("run", *options, *sizes)
    app([*command, "--out", str(folder)], standalone_mode=False)
    return Made(command, folder, repr(Run.open(folder).rows().to_pydict()))
