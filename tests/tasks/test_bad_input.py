"""Bad input, as a person would give it: exit code 2, one message with what is needed to mend it, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
name: mine
source:
  files: {train: train.jsonl, evaluation: test.jsonl}
template: "Sentence: {sentence} Label:"
labels: [Negative, Positive]
"""
ROWS = "".join(json.dumps({"sentence": f"text {i}", "label": i % 2}) + "\n" for i in range(10))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task that is in order, for a test to spoil."""
    (tmp_path / "mine.yaml").write_text(GOOD)
    (tmp_path / "train.jsonl").write_text(ROWS)
    (tmp_path / "test.jsonl").write_text(ROWS)
    return tmp_path


@pytest.fixture
def refused(cli: Callable, folder: Path) -> Callable[..., str]:
    """Runs validate and returns the one message, having checked that it is one, with exit code 2."""

    def run(*arguments: object) -> str:
        code, out, err = cli("validate", *(arguments or (folder / "mine.yaml",)))
        assert code == 2, (code, out, err)
        assert "Traceback" not in err
        assert err.startswith("error: ")
        assert len(err.strip().splitlines()) == 1
        return err

    return run


def spoil(folder: Path, old: str, new: str) -> None:
    assert old in GOOD
    (folder / "mine.yaml").write_text(GOOD.replace(old, new))


def test_the_task_that_is_spoilt_below_is_in_order(cli, folder):
    code, out, _ = cli("validate", folder / "mine.yaml")
    assert code == 0
    assert "Sentence: text" in out


def test_unknown_task_suggests_near_names(refused):
    message = refused("sst")
    assert "unknown task 'sst'" in message
    assert "did you mean sst" in message
    assert "agnews" in message


def test_task_file_that_does_not_exist(refused, folder):
    assert "nowhere.yaml: no such file" in refused(folder / "nowhere.yaml")


def test_task_file_that_is_a_folder(refused, folder):
    (folder / "odd.yaml").mkdir()
    assert "odd.yaml: cannot be read" in refused(folder / "odd.yaml")


def test_malformed_yaml_names_the_line(refused, folder):
    spoil(folder, "labels: [Negative, Positive]", "labels: [Negative, Positive")
    message = refused()
    assert "mine.yaml, line 6" in message
    assert "malformed YAML" in message


def test_empty_task_file(refused, folder):
    (folder / "mine.yaml").write_text("")
    assert "expected `field: value` lines, found an empty file" in refused()


def test_task_file_that_is_a_list(refused, folder):
    (folder / "mine.yaml").write_text("- name: mine\n")
    assert "found a list" in refused()


def test_task_file_that_is_not_utf8(refused, folder):
    (folder / "mine.yaml").write_bytes(GOOD.replace("Negative", "Négative").encode("latin-1"))
    assert "mine.yaml: not UTF-8" in refused()


def test_a_field_given_twice(refused, folder):
    (folder / "mine.yaml").write_text(GOOD + "name: again\n")
    assert "line 6: malformed YAML: 'name' is given twice" in refused()


def test_python_in_yaml_is_not_run(refused, folder):
    spoil(folder, "name: mine", "name: !!python/object/apply:os.getcwd []")
    assert "malformed YAML: could not determine a constructor" in refused()


def test_unknown_field_suggests_near_names(refused, folder):
    spoil(folder, "template:", "templates:")
    assert (
        "line 4: unknown field 'templates' (found 'Sentence: {sentence} Label:'): did you mean template"
        in refused()
    )


def test_unknown_field_beside_the_others(refused, folder):
    (folder / "mine.yaml").write_text(GOOD + "lables: [x]\n")
    message = refused()
    assert "mine.yaml, line 6: unknown field 'lables' (found ['x']): did you mean label" in message


def test_unknown_field_inside_a_field(refused, folder):
    spoil(folder, "files: {train: train.jsonl, evaluation: test.jsonl}", "hub: {dataset: x/y, split: z}")
    message = refused()
    assert "line 3: unknown field 'source.hub.split'" in message
    assert "Known: config, dataset, revision" in message


def test_missing_field(refused, folder):
    spoil(folder, "labels: [Negative, Positive]\n", "")
    assert "mine.yaml: field 'labels' is missing" in refused()


def test_no_source(refused, folder):
    spoil(folder, "  files: {train: train.jsonl, evaluation: test.jsonl}", "  {}")
    assert "exactly one of hub, files, generator is needed, found none" in refused()


def test_two_sources(refused, folder):
    spoil(folder, "template:", "  hub: {dataset: x/y}\ntemplate:")
    assert "found ['files', 'hub']" in refused()


def test_unknown_generator(refused, folder):
    spoil(
        folder,
        "files: {train: train.jsonl, evaluation: test.jsonl}",
        "generator: {name: embeded-sst2, train: 5, evaluation: 5}",
    )
    message = refused()
    assert "unknown generator 'embeded-sst2'" in message
    assert "did you mean" in message


def test_split_that_the_files_do_not_have(refused, folder):
    (folder / "mine.yaml").write_text(GOOD + "splits: {train: train, evaluation: dev}\n")
    assert "splits.evaluation: there is no split 'dev'; known: evaluation, train" in refused()


def test_template_without_a_field(refused, folder):
    spoil(folder, "{sentence}", "sentence")
    assert "line 4: field 'template': names no field" in refused()


def test_template_with_an_open_brace(refused, folder):
    spoil(folder, "{sentence}", "{sentence")
    assert "line 4: field 'template': " in refused()


def test_template_that_ends_in_a_space(refused, folder):
    spoil(folder, "Label:", "Label: ")
    message = refused()
    assert "line 4: field 'template': 'Sentence: {sentence} Label: ' ends in a space" in message


def test_template_that_reaches_into_objects(refused, folder):
    spoil(folder, "{sentence}", "{sentence.__class__}")
    assert "'{sentence.__class__}' is not the plain name of a field" in refused()


def test_template_naming_a_field_that_the_data_lacks(refused, folder):
    spoil(folder, "{sentence}", "{text}")
    message = refused()
    assert (
        "train.jsonl, row 0: the template's {text} needs the column 'text'; found sentence, label" in message
    )


@pytest.mark.parametrize(
    ("word", "kind"),
    [("True", "the boolean True"), ("no", "the boolean"), ("3", "the number 3"), ("~", "null")],
)
def test_label_word_that_yaml_took_for_something_else(refused, folder, word, kind):
    spoil(folder, "[Negative, Positive]", f"[Negative, {word}]")
    message = refused()
    assert f"mine.yaml, line 5: field 'labels[1]': YAML read this as {kind}" in message
    assert "quote it" in message


def test_one_label_word(refused, folder):
    spoil(folder, "[Negative, Positive]", "[Negative]")
    assert "field 'labels'" in refused()


def test_the_same_label_word_twice(refused, folder):
    spoil(folder, "[Negative, Positive]", "[Negative, Negative]")
    assert "label word 'Negative' is given twice" in refused()


def test_label_outside_the_label_words(refused, folder):
    (folder / "train.jsonl").write_text(ROWS + '{"sentence": "x", "label": 2}\n')
    message = refused()
    assert (
        "train.jsonl, row 10: label 2 is outside the label words; accepted: 0 to 1 or Negative, Positive"
        in message
    )


def test_text_label_outside_the_label_words(refused, folder):
    (folder / "train.jsonl").write_text('{"sentence": "x", "label": "Neutral"}\n')
    assert "label 'Neutral' is outside the label words" in refused()


def test_split_without_labels(refused, folder):
    (folder / "test.jsonl").write_text('{"sentence": "x", "label": -1}\n')
    message = refused()
    assert "the split 'evaluation' has no labels (found -1)" in message
    assert "choose another one under `splits`" in message


def test_label_values_of_another_length(refused, folder):
    (folder / "mine.yaml").write_text(GOOD + "label_values: [neg]\n")
    assert "label_values has 1 entries and labels has 2" in refused()


def test_null_in_a_text_field(refused, folder):
    (folder / "train.jsonl").write_text('{"sentence": null, "label": 1}\n')
    assert "train.jsonl, row 0: field 'sentence' must be text, found None" in refused()


def test_half_a_character(refused, folder):
    (folder / "train.jsonl").write_text(ROWS + '{"sentence": "a \\ud800", "label": 1}\n')
    message = refused()
    assert "train.jsonl, row 10: field 'sentence' has half a character, '\\ud800' at position 2" in message


def test_empty_split(refused, folder):
    (folder / "train.jsonl").write_text("")
    assert "train.jsonl: the split is empty" in refused()


def test_fewer_examples_than_shots(refused, folder, byte_tokenizer):
    save_model(folder / "model", byte_tokenizer, positions=64)
    message = refused(folder / "mine.yaml", "--model", folder / "model", "--shots", 11)
    assert "11 shots were asked for, and the split 'train' has 10 examples" in message


@pytest.mark.parametrize(("test", "shown"), [("test.jsonl", 10), ("train.jsonl", 9)])
def test_a_small_split_is_shown_with_what_it_has(cli, folder, byte_tokenizer, test, shown):
    spoil(folder, "test.jsonl", test)
    save_model(folder / "model", byte_tokenizer, positions=2000)
    code, out, err = cli("validate", folder / "mine.yaml", "--model", folder / "model")
    assert code == 0, err
    assert f"fewer than the default of 32 shots: {shown} are shown; give a run --shots {shown}" in out
    assert f"{shown} of {shown} demonstrations fit" in out


def test_data_that_is_not_utf8(refused, folder):
    (folder / "train.jsonl").write_bytes('{"sentence": "é", "label": 1}\n'.encode("latin-1"))
    assert "train.jsonl: not UTF-8 (byte 14)" in refused()


def test_truncated_jsonl(refused, folder):
    (folder / "train.jsonl").write_text(ROWS[:-7])
    message = refused()
    assert "train.jsonl, line 10: not JSON" in message
    assert "is the file cut short?" in message


def test_jsonl_that_is_not_of_objects(refused, folder):
    (folder / "train.jsonl").write_text('["x", 1]\n')
    assert "line 1: expected an object {...}, found list" in refused()


def test_truncated_csv(refused, folder):
    spoil(folder, "train.jsonl", "train.csv")
    (folder / "train.csv").write_text("sentence,label\nfine,1\nbad")
    assert "train.csv, line 3: 1 columns, the header has 2 (sentence, label)" in refused()


def test_csv_with_an_open_quote(refused, folder):
    spoil(folder, "train.jsonl", "train.csv")
    (folder / "train.csv").write_text('sentence,label\n"fine,1\nbad,0\n')
    assert "is a quote left open?" in refused()


def test_truncated_tsv(refused, folder):
    spoil(folder, "train.jsonl", "train.tsv")
    (folder / "train.tsv").write_text('sentence\tlabel\n"fine"\t1\n"bad')
    assert "train.tsv, line 3: unexpected end of data; is a quote left open?" in refused()


def test_csv_with_a_column_twice(refused, folder):
    spoil(folder, "train.jsonl", "train.csv")
    (folder / "train.csv").write_text("sentence,label,label\nfine,1,0\n")
    assert "line 1: the column 'label' is there twice (sentence, label, label)" in refused()


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ";"), ("csv", "\t"), ("tsv", ",")])
@pytest.mark.parametrize("text", ["fine", "fine, and more\tso"])
def test_another_separator_than_the_name_says(refused, folder, suffix, mark, text):
    spoil(folder, "train.jsonl", f"train.{suffix}")
    (folder / f"train.{suffix}").write_text(f"sentence{mark}label\n{text}{mark}1\n")
    message = refused()
    assert f"train.{suffix}, line 1: one column, {f'sentence{mark}label'!r}" in message
    assert ".csv is separated by commas and .tsv by tabs" in message


def test_truncated_parquet(refused, folder):
    import pyarrow
    import pyarrow.parquet

    spoil(folder, "train.jsonl", "train.parquet")
    table = pyarrow.table({"sentence": ["x"] * 50, "label": [0] * 50})
    pyarrow.parquet.write_table(table, folder / "train.parquet")
    whole = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(whole[: len(whole) // 2])
    assert "train.parquet: not a whole Parquet file" in refused()


def test_data_in_a_format_that_is_not_read(refused, folder):
    spoil(folder, "train.jsonl", "train.xlsx")
    assert "'.xlsx' files are not read; accepted: .jsonl, .csv, .tsv, .parquet" in refused()


def test_data_file_that_does_not_exist(refused, folder):
    (folder / "train.jsonl").unlink()
    assert "train.jsonl: no such file" in refused()


def test_data_option_without_such_a_folder(refused, folder):
    assert "no such folder" in refused("sst2", "--data", folder / "nowhere")


def test_data_option_without_the_task(refused, folder):
    (folder / "sst5").mkdir()
    message = refused("sst2", "--data", folder)
    assert "sst2: no such folder; did you mean sst5?" in message


def test_data_option_without_the_split(refused, folder):
    (folder / "sst2").mkdir()
    (folder / "sst2" / "train.txt").touch()
    message = refused("sst2", "--data", folder)
    assert "needs one of train.jsonl, train.csv, train.tsv, train.parquet; found train.txt" in message


def test_query_longer_than_the_models_context(refused, folder, byte_tokenizer):
    (folder / "test.jsonl").write_text(json.dumps({"sentence": "word " * 80, "label": 0}) + "\n")
    save_model(folder / "model", byte_tokenizer, positions=64)
    message = refused(folder / "mine.yaml", "--model", folder / "model", "--shots", 2)
    assert "query evaluation:0 has" in message
    assert "the model has 64 positions" in message


def test_offline_with_data_not_at_hand_says_how_to_get_it(refused, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "empty")
    message = refused("sst2", "--offline")
    assert "nyu-mll/glue (sst2), split train: not at hand, and --offline forbids to fetch it" in message
    assert "--data" in message
    assert "sst2/train.jsonl" in message


def test_hub_folder_that_does_not_exist(refused, folder):
    spoil(folder, "files: {train: train.jsonl, evaluation: test.jsonl}", "hub: {dataset: ./nowhere}")
    assert "source.hub.dataset: no such folder" in refused()


def save_model(folder: Path, tokenizer: object, positions: int) -> None:
    """A model as far as validate looks at it: a configuration and a tokenizer."""
    from transformers import GPT2Config

    GPT2Config(
        n_positions=positions, vocab_size=len(tokenizer), n_layer=2, n_embd=8, n_head=2
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
