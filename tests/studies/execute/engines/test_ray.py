"""The Ray engine on a real cluster of two nodes, one of whose workers is killed on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualscope import run_study
from dualscope.core.folder import Owner
from dualscope.studies import Study
from dualscope.studies.execute.cost import Estimator
from dualscope.studies.execute.engines import ray as engine
from dualscope.studies.execute.engines import ray as gpus
from dualscope.studies.execute.engines.ray import MOST_ON_ONE, USABLE, Actor, gpus_for
from dualscope.studies.execute.work import Event, Outcome, WorkerSetup
from dualscope.studies.run_folder.storage import RunFolder
from tests.studies.children import files

ray = pytest.importorskip("ray", reason="the ray extra is not installed")


@pytest.fixture
def cluster() -> Iterator[str]:
    """Two nodes with one processor each, gone before the next test: Ray would find them again by itself.

    They have no token: Ray reads the mode once, when it is imported, and the other tests of this process have none.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes.address
    ray.shutdown()
    nodes.shutdown()


SMALL = {"tasks": ["embedded-sst2"], "variants": ["trained", "untrained"], "seeds": 1, "shots": 4, "queries": 12}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(SMALL, id="small"),
        pytest.param(
            {},
            id="whole",
            marks=pytest.mark.skipif(
                not os.environ.get("DUALSCOPE_WHOLE"),
                reason="the whole default study twice takes minutes: DUALSCOPE_WHOLE=1 runs it",
            ),
        ),
    ],
)
def test_two_nodes_and_a_killed_worker(
    options: dict[str, Any], cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    study = Study.resolve(options, preset="quick")
    victims: list[int] = []

    def kill_one(event: Event) -> None:
        """After the first result, kill the worker that holds a claim now."""
        for name in [] if victims or not isinstance(event, Outcome) else os.listdir(tmp_path / "ray/claims"):
            owner = Owner.decode((tmp_path / "ray/claims" / name).read_text().partition("\n")[0])
            assert owner is not None
            assert owner.pid != os.getpid()
            victims.append(owner.pid)
            os.kill(owner.pid, signal.SIGKILL)
            return

    result = run_study(study, tmp_path / "ray", engine="ray", jobs=2, tell=kill_one, device="cpu")
    assert victims
    assert result.complete, result.failures
    assert len(result.run.stored()) == len(result.cells) >= 12  # several for each of two workers
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the actors have: sums depend on it in their last digits
    local = run_study(study, tmp_path / "local", jobs=2, device="cpu")
    there, here = ([n for n in files(tmp_path / w) if not n.startswith("provenance/")] for w in ("ray", "local"))
    assert there == here
    mine, theirs = result.run.rows().to_pandas(), local.run.rows().to_pandas()
    words = [name for name in mine if mine[name].dtype != np.float64]
    assert mine[words].equals(theirs[words])
    np.testing.assert_allclose(mine.value, theirs.value, rtol=1e-5)
    assert run_study(study, tmp_path / "ray", engine="ray", device="cpu").computed == []


NOTING = '''
import json, os, time
from pathlib import Path
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("notes")
class Notes(Learner):
    """Writes down which GPUs Ray gave to whom, and waits until four actors of the small model are there."""
    def learn(self, bench, lr, options):
        import ray
        given = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
        model, here = Path(bench.model.name).name, Path(os.environ["NOTES"])
        if model == "tiny":
            (here / "arrived" / str(os.getpid())).touch()
        began = time.monotonic()
        while len(os.listdir(here / "arrived")) < 4 and time.monotonic() < began + 120:
            time.sleep(0.1)
        about = {"gpus": given, "ids": ray.get_gpu_ids(), "pid": os.getpid(), "model": model}
        about["arrived"] = len(os.listdir(here / "arrived"))
        (here / f"{os.getpid()}-{time.time_ns()}.json").write_text(json.dumps(about))
        return Learned(bench.zero_shot)
'''


@pytest.mark.ray
@pytest.mark.slow
def test_gpus_as_the_estimate_says(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model that needs two of the declared GPUs, and four actors of a small one that share the third; one of the
    four is killed. No GPU is there: Ray counts what was declared, and the estimates are declared too.
    """
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    (tmp_path / "notes" / "arrived").mkdir(parents=True)
    (tmp_path / "noting.py").write_text(NOTING)
    large = shutil.copytree(fields["models"][0], tmp_path / "large")
    needs = {str(large): 150 * 2**30, fields["models"][0]: 20 * 2**30}
    huge = shutil.copytree(large, tmp_path / "huge")
    needs[str(huge)] = 300 * 2**30
    monkeypatch.setattr(Estimator, "memory_of", lambda self, work: needs[work.model.source])
    monkeypatch.setattr(gpus, "smallest_gpu", lambda ray: 100 * 2**30)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False})
    nodes.add_node(num_cpus=4, num_gpus=1)
    nodes.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    killed: list[int] = []
    hired: list[float] = []
    hire = engine._Crew._hire

    def hire_and_note(crew: Any, asked: float) -> Any:
        hired.append(asked)
        return hire(crew, asked)

    monkeypatch.setattr(engine._Crew, "_hire", hire_and_note)

    def noted() -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((tmp_path / "notes").glob("*.json"))]

    def kill_one(event: Event) -> None:
        """A small one's actor, when four of them have written."""
        small = [note for note in noted() if note["model"] == "tiny"]
        if len(small) >= 4 and not killed:
            killed.append(small[0]["pid"])
            os.kill(killed[0], signal.SIGKILL)

    study = fields | {
        "models": [fields["models"][0], str(huge), str(large)],
        "plugins": [str(tmp_path / "noting.py")],
        "learners": ["notes"],
        "controls": [],
        "seeds": 6,
    }
    try:
        result = run_study(study, tmp_path / "run", engine="ray", tell=kill_one)
    finally:
        ray.shutdown()
        nodes.shutdown()
    notes = noted()
    assert {(note["model"], note["gpus"]) for note in notes} == {("large", 2.0), ("tiny", 0.25)}
    assert all(len(note["ids"]) == 2 for note in notes if note["model"] == "large")
    assert all(note["arrived"] >= 4 for note in notes)  # nobody went on before four of the small one were there
    assert len({note["ids"][0] for note in notes if note["model"] == "tiny"}) == 1
    assert hired[:5] == [2.0, 0.25, 0.25, 0.25, 0.25]  # the largest that there is room for first
    assert killed
    assert {failure.about.split()[0] for failure in result.failures} == {"huge"}
    assert all("4 GPUs of this cluster" in failure.reason for failure in result.failures)
    fine = [cell.id for cell in result.cells if cell.episode.model.name != "huge"]
    assert result.run.stored() == set(fine)
    assert result.run.unreadable(fine) == {}


SLEEPY = '''
import time
from dualscope import LEARNERS, Learned, Learner

@LEARNERS.register("sleeps")
class Sleeps(Learner):
    """Takes its time."""
    def learn(self, bench, lr, options):
        time.sleep(300)
        return Learned(bench.zero_shot)
'''
RUN = """
import contextlib, json, os, sys, threading, time
import psutil
from dualscope import run_study

def kill() -> None:
    while not os.path.isdir(sys.argv[2] + "/cells"):
        time.sleep(0.1)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it went with the one that was killed
            if process.name() == sys.argv[3]:
                process.kill()
    print("killed", time.time(), flush=True)

threading.Thread(target=kill, daemon=True).start()
result = run_study(json.loads(sys.argv[1]), sys.argv[2], engine="ray", jobs=2, device="cpu")
print("ended", time.time(), json.dumps([failure.reason for failure in result.failures]), flush=True)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_dead_cluster_ends_the_run_within_a_minute(fields: dict[str, Any], tmp_path: Path, part: str) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    study = fields | {"plugins": [str(tmp_path / "sleepy.py")], "learners": ["sleeps"]}
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(study), str(tmp_path / "run"), part],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("killed", "ended")))
    ended, reasons = lines["ended"].split(" ", 1)
    assert float(ended) - float(lines["killed"]) < 60
    assert "the Ray cluster was lost" in reasons
    assert began < float(lines["killed"])
    assert time.time() - float(ended) < 15  # nothing waits at the end


SIZES = st.integers(2**20, 2**42)


@given(needed=SIZES, one=SIZES)
def test_what_is_asked_for_is_enough_and_not_wasted(needed: int, one: int) -> None:
    asked = gpus_for(needed, one)
    if asked >= 1:
        assert asked == int(asked)
        assert needed <= asked * USABLE * one * (1 + 1e-12)
        assert asked == 1 or needed > (asked - 1) * USABLE * one * (1 - 1e-12)
    else:
        sharing = round(1 / asked)
        assert 1 < sharing <= MOST_ON_ONE
        assert sharing * asked <= 1
        assert sharing * needed <= USABLE * one


@pytest.mark.parametrize(("asked", "device"), [(2.0, "cuda:0,cuda:1"), (1.0, "auto"), (0.25, "auto")])
def test_an_actor_splits_its_model_over_all_that_it_was_given(
    asked: float, device: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is there: an actor looks at how many there are, and loads nothing yet."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    setting = WorkerSetup(str(RunFolder.create(tmp_path / "run").folder), Study.build(fields))
    actor = Actor(setting, asked)
    try:
        assert actor.worker.setting.device == device
    finally:
        actor.life.close()
