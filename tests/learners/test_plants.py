"""Labels in the same places behind other inputs."""

import pytest

from dualscope.core.errors import InputError
from dualscope.learners.plants import with_other_inputs
from tests.learners.setting import tiny_bench, tiny_task


def test_the_labels_stay_in_their_places_and_the_inputs_are_others() -> None:
    bench = tiny_bench(shots=8, balanced=True, task=tiny_task(n=200))
    lesson = bench.lesson
    sets = [with_other_inputs(lesson, bench.model, bench.spare, number) for number in (1, 2)]
    for other in sets:
        assert [one.label for one in other.demonstrations] == [one.label for one in lesson.demonstrations]
        assert len(other.context) == len(lesson.context)
        assert other.queries == lesson.queries
        used = {one.id for one in other.demonstrations}
        assert len(used) == 8
        assert not used & {one.id for one in lesson.demonstrations}
        assert not used & set(lesson.query_ids)
    assert sets[0].context != sets[1].context
    assert with_other_inputs(lesson, bench.model, bench.spare, 1).context == sets[0].context


def test_too_few_spare_examples_are_said() -> None:
    bench = tiny_bench(shots=8, balanced=True, task=tiny_task(n=200))
    with pytest.raises(InputError, match="need 8 spare training examples, and 3 are left"):
        with_other_inputs(bench.lesson, bench.model, bench.spare[:3], 1)
