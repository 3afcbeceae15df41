"""On what settings are chosen: never on what the learner itself reads, nor on what is measured."""

from __future__ import annotations

import pytest

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.learners.choice import ENOUGH, judges
from tests.learners.setting import tiny_lesson, tiny_task, wrapped


def bench_of(examples: int) -> Bench:
    model = wrapped("gpt2")
    return Bench(model, tiny_lesson(model, task=tiny_task(n=examples), shots=3, queries=4))


@pytest.mark.parametrize("materials", [5, 20, 64])
def test_a_setting_is_chosen_on_other_examples_than_the_learner_reads(materials: int) -> None:
    bench = bench_of(400)
    read = set(bench.materials(materials, "it").query_ids)
    assert len(read) == materials
    (judge,) = judges(bench, materials)
    asked = set(judge.lesson.query_ids)
    assert len(asked) >= ENOUGH
    assert not asked & read
    taught = {d.id for d in bench.lesson.demonstrations}
    assert not asked & (taught | set(bench.lesson.query_ids))


def test_what_the_learner_reads_does_not_count_as_enough() -> None:
    bench = bench_of(160)
    left = len(bench.spare)
    assert left >= ENOUGH
    with pytest.raises(InputError, match="besides the"):
        judges(bench, left - ENOUGH + 1)
