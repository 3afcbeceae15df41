"""Label words that have nothing to do with the task, and queries of another task."""

from __future__ import annotations

import pytest

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.models.model import Model
from dualscope.tasks import Episode, Task, make_lesson
from tests.learners.setting import tiny_task


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load("embedded", device="cpu")


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.load("embedded-sst2")


def test_every_class_gets_a_word_of_its_own(model: Model, task: Task) -> None:
    words = []
    for seed in range(4):
        episode = Episode.draw(task, 4, seed, queries=5, demo_labels="abstract")
        lesson = make_lesson(episode, model.tokenizer, model.max_positions)
        labels = lesson.episode.task.labels
        assert len(set(labels)) == 2
        assert not set(labels) & set(task.labels)
        assert all(len(answer) == 1 for answer in lesson.answers)
        assert model.tokenizer.unk_token_id not in {answer[0] for answer in lesson.answers}
        assert [d.label_index for d in lesson.demonstrations] == [e.label for e in episode.demonstrations]
        assert all(d.label == lesson.answers[d.label_index] for d in lesson.demonstrations)
        words.append(labels)
    assert len(set(words)) > 1, "the seed deals them out"


def test_other_demonstrations_keep_the_words(model: Model, task: Task) -> None:
    episode = Episode.draw(task, 4, 0, queries=5, demo_labels="abstract")
    bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
    altered = bench.learned("in-context", control="redraw")
    assert altered.trace.query_ids == bench.lesson.query_ids
    from dualscope.learners.altered_lessons import redrawn

    assert redrawn(bench.lesson, model).answers == bench.lesson.answers


def test_what_cannot_be_had(model: Model, task: Task) -> None:
    with pytest.raises(InputError, match="cannot be had with it"):
        Episode.draw(task, 4, 0, demo_labels="abstract", corrupt="icl")
    many = tiny_task(labels=tuple(f"w{i}" for i in range(60)), n=400)
    episode = Episode.draw(many, 2, 0, queries=2, demo_labels="abstract")
    with pytest.raises(InputError, match="needs 60 words"):
        make_lesson(episode, model.tokenizer, model.max_positions)


def test_queries_of_another_template(model: Model) -> None:
    one, other = tiny_task("one"), tiny_task("other", template="Review: {text} Sentiment:")
    episode = Episode.draw(one, 3, 0, queries=4, queries_from=other)
    lesson = make_lesson(episode, model.tokenizer, model.max_positions)
    as_asked = [model.tokenizer(other.prompt(q), add_special_tokens=False)["input_ids"] for q in episode.queries]
    assert [list(query) for query in lesson.queries] == as_asked
    first = model.tokenizer(one.prompt(episode.demonstrations[0]), add_special_tokens=False)["input_ids"]
    assert list(lesson.demonstrations[0].prompt) == first
    with pytest.raises(InputError, match="need the same label words"):
        Episode.draw(one, 3, 0, queries=4, queries_from=tiny_task("third", labels=("Yes", "No")))
