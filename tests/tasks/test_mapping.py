"""Bad data: exit code 2, one message with what is needed to mend it, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualscope import Episode, Example, InputError, Task
from dualscope.learners.altered_lessons import redrawn
from dualscope.tasks import make_lesson, spare
from tests.conftest import TEMPLATE
from tests.tasks.spoilt import ROWS, save_model, spoil


def test_label_outside_the_label_words(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text(ROWS + '{"sentence": "x", "label": 2}\n')
    message = refused()
    assert "train.jsonl, line 11: label 2 is outside the label words; accepted: 0 to 1 or Negative, Positive" in message


def test_text_label_outside_the_label_words(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"sentence": "x", "label": "Neutral"}\n')
    assert "label 'Neutral' is outside the label words" in refused()


def test_split_without_labels(refused: Callable[..., str], folder: Path) -> None:
    (folder / "test.jsonl").write_text('{"sentence": "x", "label": -1}\n')
    message = refused()
    assert "the split 'evaluation' has no labels (the label is missing (found -1))" in message
    assert "choose another one under `splits`" in message


def test_null_in_a_text_field(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"sentence": null, "label": 1}\n')
    assert "train.jsonl, line 1: field 'sentence' must be text, found None" in refused()


def test_half_a_character(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text(ROWS + '{"sentence": "a \\ud800", "label": 1}\n')
    message = refused()
    assert "train.jsonl, line 11: field 'sentence' has half a character, '\\ud800' at position 2" in message


def test_empty_split(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text("")
    assert "train.jsonl: the split is empty" in refused()


def test_fewer_examples_than_shots(refused: Callable[..., str], folder: Path, byte_tokenizer: Any) -> None:
    save_model(folder / "model", byte_tokenizer, positions=64)
    message = refused(folder / "mine.yaml", "--model", folder / "model", "--shots", 11)
    assert "11 shots were asked for, and the split 'train' has 10 examples" in message


@pytest.mark.parametrize(("test", "shown"), [("test.jsonl", 10), ("train.jsonl", 9)])
def test_a_small_split_is_shown_with_what_it_has(
    cli: Callable[..., Any], folder: Path, byte_tokenizer: Any, test: Any, shown: Any
) -> None:
    spoil(folder, "test.jsonl", test)
    save_model(folder / "model", byte_tokenizer, positions=2000)
    code, out, err = cli("validate", folder / "mine.yaml", "--model", folder / "model")
    assert code == 0, err
    assert f"fewer than the default of 32 shots: {shown} are shown; give a run --shots {shown}" in out
    assert f"{shown} of {shown} demonstrations fit" in out


def test_data_that_is_not_utf8(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_bytes('{"sentence": "é", "label": 1}\n'.encode("latin-1"))
    assert "train.jsonl: not UTF-8 (byte 14)" in refused()


def test_truncated_jsonl(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text(ROWS[:-7])
    message = refused()
    assert "train.jsonl, line 10: not JSON" in message
    assert "is the file cut short?" in message


def test_jsonl_that_is_not_of_objects(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").write_text('["x", 1]\n')
    assert "line 1: expected an object {...}, found list" in refused()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("cut.csv", "sentence,label\nfine,1\nbad", "line 3: 1 columns, the header has 2 (sentence, label)"),
        ("open.csv", 'sentence,label\n"fine,1\nbad,0\n', "is a quote left open?"),
        ("cut.tsv", 'sentence\tlabel\n"fine"\t1\n"bad', "line 3: unexpected end of data; is a quote left open?"),
        ("twice.csv", "sentence,label,label\nfine,1,0\n", "line 1: the column 'label' is there twice"),
    ],
)
def test_damaged_tables(refused: Callable[..., str], folder: Path, name: str, content: Any, said: str) -> None:
    spoil(folder, "train.jsonl", name)
    (folder / name).write_text(content)
    message = refused()
    assert name in message
    assert said in message


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ";"), ("csv", "\t"), ("tsv", ",")])
@pytest.mark.parametrize("text", ["fine", "fine, and more\tso"])
def test_another_separator_than_the_name_says(
    refused: Callable[..., str], folder: Path, suffix: str, mark: str, text: str
) -> None:
    spoil(folder, "train.jsonl", f"train.{suffix}")
    (folder / f"train.{suffix}").write_text(f"sentence{mark}label\n{text}{mark}1\n")
    message = refused()
    assert f"train.{suffix}, line 1: one column, {f'sentence{mark}label'!r}" in message
    assert ".csv is separated by commas and .tsv by tabs" in message


def test_truncated_parquet(refused: Callable[..., str], folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    spoil(folder, "train.jsonl", "train.parquet")
    table = pyarrow.table({"sentence": ["x"] * 50, "label": [0] * 50})
    pyarrow.parquet.write_table(table, folder / "train.parquet")
    whole = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(whole[: len(whole) // 2])
    assert "train.parquet: not a whole Parquet file" in refused()


def test_data_in_a_format_that_is_not_read(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "train.jsonl", "train.xlsx")
    assert "'.xlsx' files are not read; accepted: .jsonl, .csv, .tsv, .parquet" in refused()


def test_data_file_that_does_not_exist(refused: Callable[..., str], folder: Path) -> None:
    (folder / "train.jsonl").unlink()
    assert "train.jsonl: no such file" in refused()


def test_data_option_without_such_a_folder(refused: Callable[..., str], folder: Path) -> None:
    assert "no such folder" in refused("sst2", "--data", folder / "nowhere")


def test_data_option_without_the_task(refused: Callable[..., str], folder: Path) -> None:
    (folder / "sst5").mkdir()
    message = refused("sst2", "--data", folder)
    assert "sst2: no such folder; did you mean sst5?" in message


def test_data_option_without_the_split(refused: Callable[..., str], folder: Path) -> None:
    (folder / "sst2").mkdir()
    (folder / "sst2" / "train.txt").touch()
    message = refused("sst2", "--data", folder)
    assert "needs one of train.jsonl, train.csv, train.tsv, train.parquet; found train.txt" in message


def test_query_longer_than_the_models_context(refused: Callable[..., str], folder: Path, byte_tokenizer: Any) -> None:
    (folder / "test.jsonl").write_text(json.dumps({"sentence": "word " * 80, "label": 0}) + "\n")
    save_model(folder / "model", byte_tokenizer, positions=64)
    message = refused(folder / "mine.yaml", "--model", folder / "model", "--shots", 2)
    assert "query evaluation:0 has" in message
    assert "the model has 64 positions" in message


def test_offline_with_data_not_at_hand_says_how_to_get_it(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "empty")
    message = refused("sst2", "--offline")
    assert "nyu-mll/glue (sst2), split train: not at hand, and --offline forbids to fetch it" in message
    assert "--data" in message
    assert "sst2/train.jsonl" in message


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
