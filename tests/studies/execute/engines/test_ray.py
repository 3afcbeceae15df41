"""The Ray engine on a real cluster of two nodes, one of whose workers is killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope.core.owner import Owner
from dualscope.studies import Study, run_study
from dualscope.studies.execute.outcome import Event, Outcome
from tests.studies.children import files

ray = pytest.importorskip("ray", reason="the ray extra is not installed")


@pytest.fixture
def cluster() -> Iterator[str]:
    """Two nodes with one processor each, gone before the next test: Ray would find them again by itself."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes.address
    ray.shutdown()
    nodes.shutdown()


SMALL = {"tasks": ["embedded-sst2"], "seeds": 1, "shots": 4, "queries": 12}


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
    assert len(result.run.stored()) == len(result.cells) >= 18
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the actors have: sums depend on it in their last digits
    local = run_study(study, tmp_path / "local", jobs=2, device="cpu")
    there, here = (
        [n for n in files(tmp_path / w) if not n.startswith("provenance/")] for w in ("ray", "local")
    )
    assert there == here
    mine, theirs = result.run.rows().to_pandas(), local.run.rows().to_pandas()
    words = [name for name in mine if mine[name].dtype != np.float64]
    assert mine[words].equals(theirs[words])
    np.testing.assert_allclose(mine.value, theirs.value, rtol=1e-5)
    assert run_study(study, tmp_path / "ray", engine="ray", device="cpu").computed == []


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
import json, os, sys, threading, time
import psutil
from dualscope.studies import run_study

def kill() -> None:
    while not os.path.isdir(sys.argv[2] + "/cells"):
        time.sleep(0.1)
    for process in psutil.Process().children(recursive=True):
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
def test_a_dead_cluster_ends_the_run_within_a_minute(
    fields: dict[str, Any], tmp_path: Path, part: str
) -> None:
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
    lines = dict(
        line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("killed", "ended"))
    )
    ended, reasons = lines["ended"].split(" ", 1)
    assert float(ended) - float(lines["killed"]) < 60
    assert "the Ray cluster was lost" in reasons
    assert began < float(lines["killed"])
    assert time.time() - float(ended) < 15  # nothing waits at the end
