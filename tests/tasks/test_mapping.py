"""Bad data: exit code 2, one message with what is needed to mend it, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
