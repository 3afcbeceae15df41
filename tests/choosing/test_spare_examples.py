"""Spare examples: what a setting is chosen on is never what is taught."""

from dualscope.choosing.spare_examples import asking_first
from tests.learners.setting import tiny_bench


def test_what_is_taught_is_not_asked() -> None:
    """A redrawn lesson teaches examples that are spare to the lesson itself."""
    bench = tiny_bench("gpt2", shots=4, queries=6)
    taught = bench.lesson.episode.demonstrations
    asked = asking_first(bench.lesson, bench.model, [*taught[:2], *bench.spare], 3, "a choice")
    assert asked.query_ids == tuple(example.id for example in bench.spare[:3])
    assert not set(asked.query_ids) & {example.id for example in taught}
