"""A GPU's multi-process service: begun for a run, ended with it, and done without where it cannot be had."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualscope.studies.execute import shared_gpu as module
from dualscope.studies.execute.shared_gpu import CONTROL, PIPES, shared_gpu

# Stands in for the driver's tool, which talks to a GPU: it notes how it was called, and for which place.
TOOL = """#!{python}
import os, sys
said = "-d" if "-d" in sys.argv else sys.stdin.read().strip()
with open("{calls}", "a") as file:
    print(said, os.environ["{pipes}"], os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
sys.exit({code})
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setattr(module, "USUAL", tmp_path / "none")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = tmp_path / "calls"
    found.touch()
    tool(tmp_path, 0)
    return found


def tool(folder: Path, code: int) -> None:
    path = folder / CONTROL
    path.write_text(TOOL.format(python=sys.executable, calls=folder / "calls", pipes=PIPES, code=code))
    path.chmod(0o755)


def test_begins_and_ends_with_the_run(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIAL", "pass")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with shared_gpu() as shared:
        assert shared
        place = os.environ[PIPES]
        assert Path(place).is_dir()
        assert calls.read_text().split() == ["-d", place, "None"]  # the service numbers no GPUs of its own
    assert calls.read_text().splitlines()[1:] == [f"quit {place} None"]
    assert PIPES not in os.environ
    assert not Path(place).exists()


@pytest.mark.parametrize(("code", "trial"), [(1, "pass"), (0, "raise SystemExit(1)")])
def test_one_that_does_not_work_is_done_without(
    code: int, trial: str, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(calls.parent, code)
    monkeypatch.setattr(module, "TRIAL", trial)
    with shared_gpu() as shared:
        assert not shared
        assert PIPES not in os.environ, "workers would look for a service that is not there"
    assert calls.read_text().splitlines()[-1].startswith("quit")


def test_somebody_elses_is_used_and_left(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(PIPES, "/theirs")
        with shared_gpu() as shared:
            assert (shared, os.environ[PIPES]) == (True, "/theirs")
    calls.with_name("none").mkdir()
    (calls.with_name("none") / "control").touch()
    with shared_gpu() as shared:
        assert shared
    assert calls.read_text() == ""


def test_ends_when_the_run_is_killed(calls: Path) -> None:
    code = f"""
from pathlib import Path
from dualscope.studies.execute import shared_gpu as module
module.TRIAL, module.USUAL = "pass", Path({str(calls.with_name("none"))!r})
with module.shared_gpu():
    print("inside", flush=True)
    input()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"inside\n"
        assert "quit" not in calls.read_text()
        process.kill()
    until = time.monotonic() + 20
    while "quit" not in calls.read_text():
        assert time.monotonic() < until, "the service outlived the run"
        time.sleep(0.05)


@pytest.mark.skipif(shutil.which(CONTROL) is None, reason="needs NVIDIA's multi-process service")
def test_on_a_gpu() -> None:
    """Real: either it works, or the environment is as before; a process can compute on the GPU in both cases."""
    with shared_gpu() as shared:
        assert shared == (PIPES in os.environ)
        assert subprocess.run([sys.executable, "-c", module.TRIAL], timeout=60).returncode == 0
