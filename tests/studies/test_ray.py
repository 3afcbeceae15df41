"""The Ray engine on a real cluster of two nodes, one of whose workers is killed on the way."""

import os
import signal
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes with one processor each."""
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
