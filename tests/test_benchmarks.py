"""The benchmarks' made-up lessons are lessons: they have what learners ask of a real one. Jobs leave nothing out."""

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from benchmarks import lessons
from benchmarks.regression_full import JOBS, build
from benchmarks.regression_ship import read_parts
from benchmarks.shapes import VOCABULARY, random_model

from dualscope.learners import Bench
from dualscope.regression.experiments.akyurek import Akyurek
from dualscope.regression.experiments.variants import ARMS


@pytest.mark.parametrize("name", ["gd", "lcgd"])
def test_a_made_up_lesson_is_learned(name: str) -> None:
    bench = Bench(random_model("tiny", "float32", "cpu"), lessons.real_lengths("mr", 2, 3, VOCABULARY))
    assert not bench.learned(name, 0.003).trace.attn_out.equal(bench.zero_shot.attn_out)


def test_every_kind_of_attention_is_in_one_job() -> None:
    jobs = [build(job, 9.0, tiny=True, compiled=False) for job in JOBS if job.experiment == "variants"]
    assert sorted(arm for job in jobs for arm in job.arms) == sorted(ARMS)


def test_every_size_and_noise_is_in_one_job() -> None:
    full = Akyurek.full()
    jobs = [full.model_copy(update=job.settings) for job in JOBS if job.experiment == "akyurek"]
    assert sorted(str(arm) for job in jobs for arm in job.arms) == sorted(map(str, full.arms))


def test_parts_are_joined_as_jobs_are_ordered(tmp_path: Path) -> None:
    order = [job.name for job in JOBS]
    for number, name in enumerate(reversed(order)):
        (tmp_path / f"{number}.json.gz").write_bytes(gzip.compress(json.dumps({"job": name}).encode()))
    with tarfile.open(tmp_path / "parts.tar.gz", "w:gz") as whole:
        for path in sorted(tmp_path.glob("*.json.gz")):
            whole.add(path, path.name)
    assert list(read_parts([tmp_path / "parts.tar.gz"])) == order
