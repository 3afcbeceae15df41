"""What a bench's learners share is computed once."""

import pytest

from dualscope.learners import Bench
from tests.learners.setting import tiny_bench

LR = 0.3


def test_bench_computes_once() -> None:
    bench = tiny_bench()
    assert bench.learned("zero-shot").trace is bench.zero_shot
    assert bench.learned("icl").trace is bench.in_context
    assert bench.learned("ft", LR) is bench.learned("gd", LR)
    assert bench.learned("gd", LR, epochs=2) is not bench.learned("gd", LR)
    assert bench.model.counters["prefixes"] == 1
    assert bench.model.counters["context reads"] == 1
    again = Bench(bench.model, bench.lesson, zero_shot=bench.zero_shot)
    assert again.zero_shot is bench.zero_shot


@pytest.mark.parametrize(("learner", "direct"), [("gd", True), ("gd-all", False)])
def test_a_direct_effect_is_that_of_keys_and_values_alone(learner: str, direct: bool) -> None:
    bench = tiny_bench("llama", want=frozenset({"direct"}))
    assert ("direct_attn_out" in bench.learned(learner, LR).trace.extras) is direct
