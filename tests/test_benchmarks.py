"""The benchmarks' made-up lessons are lessons: what learners ask of a real one they find in these."""

import pytest
from benchmarks import lessons
from benchmarks.shapes import VOCABULARY, random_model

from dualscope.learners import Bench


@pytest.mark.parametrize("name", ["gd", "lcgd"])
def test_a_made_up_lesson_is_learned(name: str) -> None:
    bench = Bench(random_model("tiny", "float32", "cpu"), lessons.real_lengths("mr", 2, 3, VOCABULARY))
    assert not bench.learned(name, 0.003).trace.attn_out.equal(bench.zero_shot.attn_out)
