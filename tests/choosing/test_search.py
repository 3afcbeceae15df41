"""On what settings are chosen: never on what the learner itself reads, nor on what is measured."""

from __future__ import annotations

import pytest

from dualscope.choosing.search import ENOUGH, LEFT_OUT, judges
from dualscope.core.errors import InputError
from dualscope.learners import Bench
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


def test_where_no_example_is_spare_demonstrations_are_asked_in_turn() -> None:
    model = wrapped("gpt2")
    lesson = tiny_lesson(model, task=tiny_task(n=60), shots=LEFT_OUT + 2, queries=4)
    found = judges(Bench(model, lesson, spare=[]), materials=7)
    assert len(found) == LEFT_OUT
    for judge, left_out in zip(found, lesson.demonstrations, strict=False):
        assert judge.lesson.query_ids == (left_out.id,)
        assert left_out.id not in {one.id for one in (*judge.lesson.demonstrations, *judge.lesson.training)}
