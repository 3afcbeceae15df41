"""One's own demonstrations and queries, in Python and in a task file: used as they stand."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dualscope import Episode, Example, InputError, Task
from dualscope.learners.altered_lessons import redrawn
from dualscope.tasks import make_lesson, spare
from tests.conftest import TEMPLATE

SHOWN = [("ba no ti", "Negative"), ("re lo sha", "Positive"), ("un ki", "Positive")]
ASKED = [("lo re", "Positive"), ("no ba", "Negative")]
LABELS = ["Negative", "Positive"]


def made(**more: Any) -> Task:
    return Task.from_examples(SHOWN, labels=LABELS, template=TEMPLATE, **more)


def written(folder: Path, **more: Any) -> Path:
    fields: dict[str, Any] = {
        "name": "mine",
        "template": TEMPLATE,
        "labels": LABELS,
        "demonstrations": [{"sentence": text, "label": label} for text, label in SHOWN],
        "queries": [{"sentence": text, "label": label} for text, label in ASKED],
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in {**fields, **more}.items() if v is not None}), encoding="utf-8")
    return path


def test_a_task_in_memory_is_a_task() -> None:
    task = made()
    first = task.train[0]
    assert task.prompt(first) + task.answer(first.label) == "Sentence: ba no ti Label: Negative"
    episode = Episode.draw(task, shots=2, seed=3)
    assert {e.id for e in episode.demonstrations}.isdisjoint(e.id for e in episode.queries)


def test_pairs_mappings_and_examples_are_the_same_example() -> None:
    task = made()
    one, two, three = task.examples(
        [("un", "Positive"), {"sentence": "un", "label": 1}, Example("mine", {"sentence": "un"}, 1)], "queries"
    )
    assert (one.fields, one.label) == (two.fields, two.label) == (three.fields, three.label)
    assert [e.id for e in (one, two, three)] == ["queries:0", "queries:1", "mine"]


def test_an_episode_of_ones_own_is_taken_as_it_stands(byte_tokenizer: Any) -> None:
    episode = Episode.of(list(reversed(SHOWN)), ASKED, task=made())
    assert [e.fields["sentence"] for e in episode.demonstrations] == ["un ki", "re lo sha", "ba no ti"]
    assert episode.labels("icl") == episode.labels("gd") == (1, 1, 0)
    lesson = make_lesson(episode, byte_tokenizer, 200)
    assert lesson.shots_used == 3
    assert lesson.labels == (1, 0)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("un ki", "an example is a mapping {'sentence': ..., 'label': ...} or a pair (text, label), found 'un ki'"),
        ({"text": "un", "label": 0}, "the template's {sentence} needs the column 'sentence'; found text, label"),
        (("un", "Fine"), "label 'Fine' is outside the label words; accepted: 0 to 1 or Negative, Positive"),
        (("un", 2), "label 2 is outside the label words"),
        ((3.5, None), "has no labels"),
    ],
)
def test_what_is_no_example_is_told(typed: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        Episode.of([typed], ASKED, task=made())
    assert words in str(error.value)


def test_nothing_shown_or_asked_is_told() -> None:
    with pytest.raises(InputError, match="at least one demonstration"):
        Episode.of([], ASKED, task=made())
    with pytest.raises(InputError, match="at least one query"):
        Episode.of(SHOWN, [], task=made())


def test_a_task_file_lists_its_own(tmp_path: Path) -> None:
    task = Task.load(written(tmp_path))
    for seed in (0, 5):
        episode = Episode.draw(task, shots=3, seed=seed)
        assert [e.fields["sentence"] for e in episode.demonstrations] == [text for text, _ in SHOWN]
        assert [e.fields["sentence"] for e in episode.queries] == [text for text, _ in ASKED]
    assert [e.id for e in Episode.draw(task, shots=2, queries=1).demonstrations] == [
        "demonstrations:0",
        "demonstrations:1",
    ]
    assert len(Episode.draw(task, shots=2, queries=1).queries) == 1
    with pytest.raises(InputError, match="5 shots were asked for, and the task file lists 3 demonstrations"):
        Episode.draw(task, shots=5)


def test_a_file_and_python_teach_the_same(tmp_path: Path, byte_tokenizer: Any) -> None:
    from_file = make_lesson(Episode.draw(Task.load(written(tmp_path)), shots=3), byte_tokenizer, 200)
    typed = make_lesson(Episode.of(SHOWN, ASKED, task=made()), byte_tokenizer, 200)
    assert from_file.context == typed.context
    assert from_file.queries == typed.queries
    assert from_file.training == typed.training


def test_the_digest_is_of_what_is_listed(tmp_path: Path) -> None:
    first = Task.load(written(tmp_path)).digest
    other = Task.load(written(tmp_path, queries=[{"sentence": "lo", "label": 0}])).digest
    assert first != other


def test_what_is_listed_is_never_drawn_as_well(tiny_task: Task, tiny_task_file: Path, tmp_path: Path) -> None:
    """A listed text may stand in the data too: no query, spare example or redraw may be it."""
    listed = [tiny_task.train[i] for i in range(5)]
    rows = [{"sentence": e.fields["sentence"], "label": e.label} for e in listed]
    fields = yaml.safe_load(tiny_task_file.read_text())
    fields["source"]["files"] = {k: str(tiny_task_file.parent / v) for k, v in fields["source"]["files"].items()}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump({**fields, "name": "both", "demonstrations": rows}))
    task = Task.load(path)
    episode = Episode.draw(task, shots=5)
    texts = [e.fields["sentence"] for e in episode.demonstrations]
    assert texts == [row["sentence"] for row in rows]
    for others in (episode.queries, spare(task, [episode])):
        assert others
        assert {e.fields["sentence"] for e in others}.isdisjoint(texts)


def test_redraw_needs_something_to_draw_from(tmp_path: Path, byte_tokenizer: Any) -> None:
    class Fake:
        tokenizer, max_positions = byte_tokenizer, 200

    lesson = make_lesson(Episode.draw(Task.load(written(tmp_path)), shots=3), byte_tokenizer, 200)
    with pytest.raises(InputError, match="this task only lists its demonstrations; give it a `source`"):
        redrawn(lesson, Fake())  # type: ignore[arg-type]
    lesson = make_lesson(Episode.of(made().train, ASKED, task=made()), byte_tokenizer, 200)
    with pytest.raises(InputError, match="would be the same 3"):
        redrawn(lesson, Fake())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"queries": None}, "a source to draw examples from is needed"),
        ({"demonstrations": []}, "field 'demonstrations'"),
        ({"demonstrations": [{"sentence": "un", "label": True}]}, "quote it"),
        ({"demonstrations": [{"sentence": None, "label": 0}]}, "quote it"),
        ({"queries": [{"sentence": "un"}]}, "the label needs the column 'label'; found sentence"),
    ],
)
def test_a_bad_list_is_told(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        Episode.draw(Task.load(written(tmp_path, **more)), shots=1)
    assert words in str(error.value)
