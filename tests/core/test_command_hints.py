"""Hints tell people to type what works where they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dualscope.core import command_hints as module
from dualscope.core.command_hints import called


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An editable install: a program in .venv/bin that the shell does not find by its name."""
    found = tmp_path / ".venv" / "bin" / "dualscope"
    found.parent.mkdir(parents=True)
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(found), "run"])
    monkeypatch.setenv("PATH", "/nowhere")
    return found


def test_a_program_that_the_shell_does_not_find(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert called("doctor", "--model", "m") == ".venv/bin/dualscope doctor --model m"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert called() == str(program)


def test_a_program_that_the_shell_finds(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert called("run") == "dualscope run"


def test_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(Path(module.__file__).parents[1] / "__main__.py")])
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert called("run") == f"{Path(sys.executable).name} -m dualscope run"


def test_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/lib/ipykernel_launcher.py"])
    assert called("run") == "dualscope run"


def test_python_m_is_the_command() -> None:
    environment = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        [sys.executable, "-m", "dualscope", "list", "--help"], capture_output=True, text=True, env=environment
    )
    assert "-m dualscope list" in done.stdout
    assert done.returncode == 0
