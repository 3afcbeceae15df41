"""A bad name or task file: exit code 2, one message with what is needed to mend it, no traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.spoilt import GOOD, spoil


def test_the_task_that_is_spoilt_below_is_in_order(cli: Callable[..., Any], folder: Path) -> None:
    code, out, _ = cli("validate", folder / "mine.yaml")
    assert code == 0
    assert "Sentence: text" in out


def test_unknown_task_suggests_near_names(refused: Callable[..., str]) -> None:
    message = refused("sst")
    assert "unknown task 'sst'" in message
    assert "did you mean sst" in message
    assert "agnews" in message


def test_task_file_that_does_not_exist(refused: Callable[..., str], folder: Path) -> None:
    assert "nowhere.yaml: no such file" in refused(folder / "nowhere.yaml")


def test_task_file_that_is_a_folder(refused: Callable[..., str], folder: Path) -> None:
    (folder / "odd.yaml").mkdir()
    assert "odd.yaml: is a folder" in refused(folder / "odd.yaml")


def test_malformed_yaml_names_the_line(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "labels: [Negative, Positive]", "labels: [Negative, Positive")
    message = refused()
    assert "mine.yaml, line 6" in message
    assert "malformed YAML" in message


def test_empty_task_file(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_text("")
    assert "expected `field: value` lines, found an empty file" in refused()


def test_task_file_that_is_a_list(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_text("- name: mine\n")
    assert "found a list" in refused()


def test_task_file_that_is_not_utf8(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_bytes(GOOD.replace("Negative", "Négative").encode("latin-1"))
    assert "mine.yaml: not UTF-8" in refused()


def test_a_field_given_twice(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_text(GOOD + "name: again\n")
    assert "line 6: malformed YAML: 'name' is given twice" in refused()


def test_python_in_yaml_is_not_run(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "name: mine", "name: !!python/object/apply:os.getcwd []")
    assert "malformed YAML: could not determine a constructor" in refused()


def test_unknown_field_suggests_near_names(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "template:", "templates:")
    assert "line 4: unknown field 'templates' (found 'Sentence: {sentence} Label:'): did you mean template" in refused()


def test_unknown_field_beside_the_others(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_text(GOOD + "lables: [x]\n")
    message = refused()
    assert "mine.yaml, line 6: unknown field 'lables' (found ['x']): did you mean label" in message


def test_unknown_field_inside_a_field(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "files: {train: train.jsonl, evaluation: test.jsonl}", "hub: {dataset: x/y, split: z}")
    message = refused()
    assert "line 3: unknown field 'source.hub.split'" in message
    assert "Known: config, dataset, revision" in message


def test_missing_field(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "labels: [Negative, Positive]\n", "")
    assert "mine.yaml: field 'labels' is missing" in refused()


def test_no_source(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "  files: {train: train.jsonl, evaluation: test.jsonl}", "  {}")
    assert "exactly one of hub, files, generator is needed, found none" in refused()


def test_two_sources(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "template:", "  hub: {dataset: x/y}\ntemplate:")
    assert "found ['files', 'hub']" in refused()


def test_unknown_generator(refused: Callable[..., str], folder: Path) -> None:
    spoil(
        folder,
        "files: {train: train.jsonl, evaluation: test.jsonl}",
        "generator: {name: embeded-sst2, train: 5, evaluation: 5}",
    )
    message = refused()
    assert "unknown generator 'embeded-sst2'" in message
    assert "did you mean" in message


def test_split_that_the_files_do_not_have(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_text(GOOD + "splits: {train: train, evaluation: dev}\n")
    assert "splits.evaluation: there is no split 'dev'; known: evaluation, train" in refused()


def test_template_without_a_field(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "{sentence}", "sentence")
    assert "line 4: field 'template': names no field" in refused()


def test_template_with_an_open_brace(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "{sentence}", "{sentence")
    assert "line 4: field 'template': " in refused()


def test_template_that_ends_in_a_space(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "Label:", "Label: ")
    message = refused()
    assert "line 4: field 'template': 'Sentence: {sentence} Label: ' ends in a space" in message


def test_template_that_reaches_into_objects(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "{sentence}", "{sentence.__class__}")
    assert "'{sentence.__class__}' is not the plain name of a field" in refused()


def test_template_naming_a_field_that_the_data_lacks(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "{sentence}", "{text}")
    message = refused()
    assert "train.jsonl, line 1: the template's {text} needs the column 'text'; found sentence, label" in message


@pytest.mark.parametrize(
    ("word", "kind"), [("True", "the boolean True"), ("no", "the boolean"), ("3", "the number 3"), ("~", "null")]
)
def test_label_word_that_yaml_took_for_something_else(
    refused: Callable[..., str], folder: Path, word: str, kind: str
) -> None:
    spoil(folder, "[Negative, Positive]", f"[Negative, {word}]")
    message = refused()
    assert f"mine.yaml, line 5: field 'labels[1]': YAML read this as {kind}" in message
    assert "quote it" in message


def test_one_label_word(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "[Negative, Positive]", "[Negative]")
    assert "field 'labels'" in refused()


def test_the_same_label_word_twice(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "[Negative, Positive]", "[Negative, Negative]")
    assert "label word 'Negative' is given twice" in refused()


def test_label_values_of_another_length(refused: Callable[..., str], folder: Path) -> None:
    (folder / "mine.yaml").write_text(GOOD + "label_values: [neg]\n")
    assert "label_values has 1 entries and labels has 2" in refused()


def test_hub_folder_that_does_not_exist(refused: Callable[..., str], folder: Path) -> None:
    spoil(folder, "files: {train: train.jsonl, evaluation: test.jsonl}", "hub: {dataset: ./nowhere}")
    assert "source.hub.dataset: no such folder" in refused()
