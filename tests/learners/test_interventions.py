"""Draws of interventions: they change what the demonstrations say, and nothing else."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope.core.errors import InputError
from dualscope.learners.altered_lessons import with_labels
from dualscope.learners.interventions import INTERVENTIONS
from dualscope.tasks import Lesson
from dualscope.tasks.relabelling import differences_of, expected_differences
from tests.learners.setting import tiny_lesson, tiny_task, wrapped

MODEL = wrapped("gpt2", max_position_embeddings=1024, n_positions=1024)


def lesson_of(classes: int, shots: int, seed: int) -> Lesson:
    words = ("Negative", "Very Positive", "Yes", "No")[:classes]
    task = tiny_task(labels=words, n=200)
    return tiny_lesson(MODEL, shots=shots, seed=seed, queries=3, task=task, balanced=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.integers(8, 20), st.integers(0, 50), st.integers(8, 14))
def test_relabel_changes_labels_and_nothing_else(classes: int, shots: int, seed: int, count: int) -> None:
    lesson = lesson_of(classes, shots, seed)
    gold = [one.label_index for one in lesson.demonstrations]
    draws = INTERVENTIONS["relabel"]().draws(lesson, count)
    assert len(draws) == count
    assert Counter(draw.level for draw in draws) == {"chance": count - count // 2, "half": count // 2}
    seen = {tuple(gold)}
    for draw in draws:
        labels = [one.label_index for one in draw.lesson.demonstrations]
        assert Counter(labels) == Counter(gold)
        assert tuple(labels) not in seen
        seen.add(tuple(labels))
        assert draw.level is not None
        differ = sum(a != b for a, b in zip(labels, gold, strict=True))
        assert differ == draw.changed == differences_of(gold, draw.level)
        assert len(draw.lesson.context) == len(lesson.context)
        assert [one.prompt for one in draw.lesson.demonstrations] == [one.prompt for one in lesson.demonstrations]
        assert [one.label for one in draw.lesson.demonstrations] == [lesson.answers[label] for label in labels]
        assert draw.lesson.shots_used == lesson.shots_used
        assert draw.lesson.queries == lesson.queries
        assert [one.label_index for one in draw.lesson.training] == labels
        for one in draw.lesson.demonstrations:  # every piece stands where it says
            tokens = one.prompt + one.label
            assert draw.lesson.context[one.start : one.start + len(tokens)] == tokens
    again = INTERVENTIONS["relabel"]().draws(lesson, count)
    assert [draw.lesson.context for draw in again] == [draw.lesson.context for draw in draws]


@pytest.mark.parametrize(
    ("labels", "chance", "half"),
    [
        ([0] * 8 + [1] * 8, 8, 4),
        ([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4, 12, 6),
        ([0] * 14 + [1] * 2, 4, 2),
        ([0, 0, 1, 1, 2, 2], 4, 2),
    ],
)
def test_the_levels_are_the_feasible_numbers_nearest_to_chance_and_half_of_it(
    labels: list[int], chance: int, half: int
) -> None:
    assert differences_of(labels, "chance") == chance
    assert differences_of(labels, "half") == half


def test_the_expected_number_of_differences_is_that_of_random_permutations() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 2)
    rng = np.random.default_rng(0)
    drawn = [(rng.permutation(labels) != labels).sum() for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(expected_differences(labels.tolist()), abs=0.03)


def test_what_cannot_be_relabelled_is_said() -> None:
    relabel = INTERVENTIONS["relabel"]()
    with pytest.raises(InputError, match="7 draws were asked for, and a comparison of responses needs at least 8"):
        relabel.draws(lesson_of(2, 8, 0), 7)
    with pytest.raises(InputError, match="labels cannot be permuted among 2 demonstrations"):
        relabel.draws(lesson_of(2, 2, 0), 8)
    one_class = lesson_of(2, 8, 0)
    with pytest.raises(InputError, match="of 1 class; take more shots, and balanced ones"):
        relabel.draws(with_labels(one_class, [1] * 8), 8)
    with pytest.raises(InputError, match="4 demonstrations allow only 4 different relabellings"):
        relabel.draws(lesson_of(2, 4, 0), 8)


def test_labels_of_one_learner_alone_are_permuted_alike() -> None:
    task = tiny_task(labels=("Negative", "Very Positive"), n=200)
    lesson = tiny_lesson(MODEL, shots=8, queries=3, task=task, balanced=True, demo_labels="flipped", corrupt="gd")
    for draw in INTERVENTIONS["relabel"]().draws(lesson, 8):
        shown = [one.label_index for one in draw.lesson.demonstrations]
        assert [one.label_index for one in draw.lesson.training] == [1 - label for label in shown]


def test_flip_one_gives_each_demonstration_the_next_class_in_turn() -> None:
    lesson = lesson_of(3, 6, 1)
    gold = [one.label_index for one in lesson.demonstrations]
    draws = INTERVENTIONS["flip-one"]().draws(lesson, 99)
    assert len(draws) == 6
    for i, draw in enumerate(draws):
        labels = [one.label_index for one in draw.lesson.demonstrations]
        assert labels == [(label + (j == i)) % 3 for j, label in enumerate(gold)]


def test_reorder_keeps_every_pair() -> None:
    lesson = lesson_of(2, 6, 1)
    pairs = Counter((one.id, one.label_index) for one in lesson.demonstrations)
    draws = INTERVENTIONS["reorder"]().draws(lesson, 5)
    assert len({draw.lesson.context for draw in draws}) == 5
    for draw in draws:
        assert Counter((one.id, one.label_index) for one in draw.lesson.demonstrations) == pairs
