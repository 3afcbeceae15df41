"""The benchmarks' made-up lessons are lessons: they have what learners ask of a real one. Jobs leave nothing out."""

import pytest
from benchmarks import lessons
from benchmarks.regression_full import JOBS, build
from benchmarks.shapes import VOCABULARY, random_model

from dualscope.learners import Bench
from dualscope.regression.experiments.variants import ARMS


@pytest.mark.parametrize("name", ["gd", "lcgd"])
def test_a_made_up_lesson_is_learned(name: str) -> None:
    bench = Bench(random_model("tiny", "float32", "cpu"), lessons.real_lengths("mr", 2, 3, VOCABULARY))
    assert not bench.learned(name, 0.003).trace.attn_out.equal(bench.zero_shot.attn_out)


def test_every_kind_of_attention_is_in_one_job() -> None:
    jobs = [build(job, 9.0, tiny=True, compiled=False) for job in JOBS if job.experiment == "variants"]
    assert sorted(arm for job in jobs for arm in job.arms) == sorted(ARMS)
