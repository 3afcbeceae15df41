"""Workers that die: what they stored stays, healthy cells are computed, the guilty one is named."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dualscope import Run, run_study
from dualscope.studies.execute.engines import local as module
from dualscope.studies.execute.engines.local import CONTROL, PIPES, shared_gpu
from dualscope.studies.execute.work import Event, Outcome
from dualscope.studies.execute.worker_count import cores

DEADLY = '''
import os, signal
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("dies")
class Dies(Learner):
    """Takes its process with it, on one of the seeds."""
    def learn(self, bench, lr, options):
        if bench.lesson.episode.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Learned(bench.zero_shot)
'''


THREADS = '''
import os
from pathlib import Path
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("threads")
class Threads(Learner):
    """Says with how many threads a library computes that looks at its environment alone."""
    def learn(self, bench, lr, options):
        Path(__file__).with_suffix(".txt").write_text(os.environ["OMP_NUM_THREADS"])
        return Learned(bench.zero_shot)
'''


@pytest.mark.slow
def test_every_library_of_a_worker_has_its_threads(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plugin = tmp_path / "threads.py"
    plugin.write_text(THREADS)
    study = fields | {"plugins": [str(plugin)], "learners": ["threads"], "seeds": 1, "variants": ["trained"]}
    assert run_study(study, tmp_path / "run", device="cpu", jobs=2).complete
    assert int(plugin.with_suffix(".txt").read_text()) == max(1, cores() // 2)
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.slow
def test_only_the_cell_that_no_worker_survives_fails(fields: dict[str, Any], tmp_path: Path) -> None:
    plugin = tmp_path / "deadly.py"
    plugin.write_text(DEADLY)
    study = fields | {"plugins": [str(plugin)], "learners": ["dies", "gd"]}
    heard: list[Event] = []
    result = run_study(study, tmp_path / "run", device="cpu", jobs=2, tell=heard.append)
    assert [failure.about.rpartition("· ")[2] for failure in result.failures] == ["dies"]
    assert "its worker was lost 2 times (killed by SIGKILL)" in result.failures[0].reason
    assert len(result.computed) == len(result.cells) - 1 == 7
    assert set(result.run.failures()) == {result.failures[0].key}
    told = [event.key for event in heard if isinstance(event, Outcome)]
    assert sorted(told) == sorted(cell.id for cell in result.cells)  # each once
    assert not (tmp_path / "run/claims").exists()
    assert not (tmp_path / "run/aside").exists()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_sigterm_is_like_ctrl_c(fields: dict[str, Any], tmp_path: Path, jobs: int) -> None:
    command = [
        *(sys.executable, "-m", "dualscope.cli", "run", "--model", fields["models"][0], "--device", "cpu"),
        *("--task", fields["tasks"][0], "--seeds", "40", "--shots", "4", "--queries", "12", "--lr", "0.1"),
        *("--learner", "gd", "--out", str(tmp_path / "run"), "--no-report", "--jobs", str(jobs)),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    cells = tmp_path / "run/cells"
    while process.poll() is None and not (cells.is_dir() and os.listdir(cells)):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert re.search("interrupted: what is finished is in .*; the same command goes on", err)
    assert Run.open(tmp_path / "run").unreadable(path.stem for path in cells.iterdir()) == {}
    # no claim, no half-written file; the prompts' texts are there if the first of them was finished in time
    assert {path.name for path in (tmp_path / "run").iterdir()} - {"texts"} == {
        *("cells", "provenance", "provenance.json", "queries", "study.yaml")
    }


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
from dualscope.studies.execute.engines import local as module
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
