"""How many processes suit: by cores, by models, and by what is free on a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualscope.core.spec import EpisodeSpec
from dualscope.studies import Study
from dualscope.studies.execute import worker_count as jobs
from dualscope.studies.execute.cost import Estimator, shape_of
from dualscope.studies.execute.runner import Runner
from dualscope.studies.execute.work import Work
from dualscope.studies.execute.worker_count import fitting_jobs, free_on_gpu, suitable_jobs, suitable_threads


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's tool that knows two GPUs: number 0 with 80 GiB free, number 1 with 20; and a machine of 12 cores."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$2" in 0) echo 81920;; 1) echo 20480;; *) echo "No devices"; exit 6;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(jobs, "cores", lambda: 12)


def test_on_a_cpu() -> None:
    assert suitable_jobs(["embedded"], "cpu") == min(jobs.cores(), jobs.MOST)
    assert suitable_jobs(["owner/not-here"], "cpu") == 1


@pytest.mark.usefixtures("gpus")
def test_small_models_share_a_gpu() -> None:
    assert suitable_jobs(["embedded"], "cuda") == 6  # two cores each
    assert suitable_jobs(["embedded"], "cuda:1") == 2  # as much memory as is free
    assert suitable_jobs(["owner/not-here"], "cuda") == 1
    assert suitable_jobs(["embedded"], "cuda:2") == 1


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("billions", "on_gpu"), [(0.02, 6), (1.3, 3), (2.8, 2), (33, 1)])
def test_larger_models_need_more_of_it(billions: float, on_gpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 GiB a process takes 8, and 12 bytes a weight; the machine's own memory holds a copy of each."""
    embedded = shape_of("embedded")
    assert embedded is not None
    large = replace(embedded, parameters=int(billions * 1e9))
    monkeypatch.setattr(jobs, "shape_of", lambda name: large if name == "large" else embedded)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**25}[name])
    assert suitable_jobs(["embedded", "large"], "cuda") == on_gpu
    assert suitable_jobs(["embedded", "large"], "cpu") == (8 if billions < 0.05 else 1)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**23}[name])
    assert suitable_jobs(["large"], "cuda") == (6 if billions < 0.05 else 1)


@pytest.mark.usefixtures("gpus")
def test_no_more_than_fit_by_the_estimate() -> None:
    """A fifth more than the estimate, and a GiB for each process's libraries: of 80 GiB."""
    assert [fitting_jobs(5, need * 2**30, "cuda") for need in (0, 12, 13, 24, 26, 79, 500)] == [5, 5, 4, 2, 2, 1, 1]
    assert fitting_jobs(5, 2**30, "cuda:2") == 1


@pytest.mark.usefixtures("gpus")
def test_a_run_that_shares_a_gpu_asks_the_estimate(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.build(fields | {"models": ["embedded"], "dtype": "float32"})
    monkeypatch.setattr(Estimator, "memory_of", lambda _self, work: 30 * 2**30 * (work.claimed.seed + 1))
    automatic = Runner(study, tmp_path / "automatic", device="cuda", jobs=None)
    works = [Work(episode, tuple(cells)) for episode, cells in automatic.plan().episodes().items()]
    assert {work.claimed.seed for work in works if isinstance(work.claimed, EpisodeSpec)} == {0, 1}
    assert automatic.jobs == 6
    assert automatic.processes(works) == 1  # the largest of them decides
    assert automatic.processes(works[:1]) == 2
    asked = Runner(study, tmp_path / "asked", device="cuda", jobs=4)
    assert asked.processes(works) == 4  # who asks has looked
    on_cpu = Runner(study, tmp_path / "cpu", device="cpu", jobs=None)
    assert on_cpu.processes(works) == on_cpu.jobs


@pytest.mark.usefixtures("gpus")
def test_a_core_of_each_worker_is_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [suitable_threads(count) for count in (1, 6, 12)] == [12, 2, 1]
    assert [suitable_threads(count, on_gpu=True) for count in (1, 6, 12)] == [11, 1, 1]


@pytest.mark.usefixtures("gpus")
def test_the_visible_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [free_on_gpu(name) // 2**30 for name in ("auto", "cuda:0", "cuda:1", "cuda:2")] == [20, 20, 80, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert free_on_gpu("cuda") == 0


def test_without_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert suitable_jobs(["embedded"], "cuda") == 1
    assert free_on_gpu("mps") == 0
