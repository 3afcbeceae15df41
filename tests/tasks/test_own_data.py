"""One's own data: every bad row at once, rows left out and counted, labels stripped, tables as tasks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas
import polars
import pytest

from dualscope import InputError, Task, compare

TASK = """name: mine
source: {{files: {{data: {file}}}}}
splits: {{train: data, evaluation: data}}
template: "{{text}} ->"
labels: [good, bad]
{more}
"""
CSV = """id,text,label
1,"a fine film,
really",good
2,a dull plot, bad
3,broken,row,here
4,meh,ugly
5,x,
6, ,good
7,nice one,Good
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = CSV, name: str = "data.csv", more: str = "") -> Path:
        (tmp_path / name).write_text(text)
        path = tmp_path / "mine.yaml"
        path.write_text(TASK.format(file=name, more=more))
        return path

    return write


def test_validate_lists_every_bad_row_by_its_line(cli: Callable[..., Any], task_file: Callable[..., Path]) -> None:
    result = cli("validate", task_file())
    assert result.code == 2
    lines = result.err.splitlines()
    assert lines[0].endswith("data.csv: 4 rows are bad")
    assert [line.split(":")[0].strip() for line in lines[1:5]] == ["line 5", "line 6", "line 7", "line 9"]
    assert "4 columns, the header has 3" in lines[1]
    assert "label 'ugly' is outside" in lines[2]
    assert "the label is missing (found '')" in lines[3]
    assert "did you mean 'good'?" in lines[4]
    assert "4 rows are bad: mend them" in lines[-1]


def test_a_column_that_is_not_there_is_said_once_and_guessed_by_content(
    cli: Callable[..., Any], task_file: Callable[..., Path]
) -> None:
    text = "id,review,verdict\n1,a fine film,good\n2,a dull plot,bad\n"
    result = cli("validate", task_file(text))
    assert result.code == 2
    assert result.err.count("line") == 1
    assert "`fields: {text: review}`" in result.err
    result = cli("validate", task_file(text, more="fields: {text: review}"))
    assert "`label: verdict`" in result.err


def test_bad_rows_are_left_out_and_counted(task_file: Callable[..., Path]) -> None:
    task = Task.load(task_file(more="on_bad_rows: skip"))
    with pytest.warns(UserWarning, match=r"data\.csv") as said:
        assert [example.label for example in task.train] == [0, 1, 0]
    assert {str(warning.message).split("data.csv: ")[1] for warning in said} == {
        "4 rows are left out (line 5, line 6, line 7, line 9)",
        "1 text is empty (line 8)",
    }
    assert task.train[-1].id == "data:5"  # as if nothing had been left out
    assert task.skipped == {"data": 4}


def test_what_was_left_out_is_in_the_provenance(task_file: Callable[..., Path], tmp_path: Path) -> None:
    from dualscope import run_study

    rows = [{"text": f"film {i}", "label": "good" if i % 2 else "bad"} for i in range(20)] + [{"text": "x"}]
    path = task_file("\n".join(map(json.dumps, rows)), "data.jsonl", "on_bad_rows: skip")
    study = {"tasks": str(path), "learners": "gd", "lr": 1.0, "shots": 2, "seeds": 1, "queries": 4}
    with pytest.warns(UserWarning, match="1 row is left out"):
        run_study(study, tmp_path / "run")
    assert json.loads((tmp_path / "run/provenance.json").read_text())["skipped_rows"] == {"mine": {"data": 1}}


def test_where_some_have_labels_a_missing_one_is_that_row_s(task_file: Callable[..., Path]) -> None:
    task = Task.load(task_file("text,label\na,good\nb,\n"))
    with pytest.raises(InputError, match=r"line 3: the label is missing") as error:
        _ = task.train
    assert "has no labels" not in str(error.value)


FEW: dict[str, Any] = {"shots": 2, "queries": 3, "lr": 1.0, "metrics": ["accuracy"]}
ROWS = {
    "id": list(range(12)),
    "review": [f"{word} film of the year" for word in ("fine", "dull") * 6],
    "verdict": [" good", "bad "] * 6,
}


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, datasets.Dataset.from_dict])
def test_a_table_is_a_task(make: Callable[..., Any]) -> None:
    task = Task.from_data(make(ROWS), label="verdict")
    assert task.labels == ("bad", "good")
    assert [task.answer(example.label) for example in task.train[:2]] == [" good", " bad"]
    assert task.prompt(task.train[0]) == "Sentence: fine film of the year Label:"
    whole = compare("embedded", make({**ROWS, "label": ROWS["verdict"]} | {"verdict": ["x"] * 12}), "gd", **FEW)
    assert whole.table("accuracy").num_rows == 3


def test_class_labels_have_their_names() -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"text": ["a b", "c d"], "label": [1, 0]}, features=features)
    task = Task.from_data(data)
    assert task.labels == ("no", "yes")
    assert [example.label for example in task.train] == [1, 0]


def test_a_table_that_cannot_be_told_says_what_to_say() -> None:
    with pytest.raises(InputError, match=r"which column holds the labels.*label='COLUMN'"):
        Task.from_data(pandas.DataFrame({"a": ["x", "y"], "b": ["p", "q"]}))
    with pytest.raises(InputError, match=r"are numbers: give the words"):
        Task.from_data(pandas.DataFrame({"text": ["x", "y"], "label": [0, 1]}))
    with pytest.raises(InputError, match="no column 'verdct': did you mean verdict"):
        Task.from_data(pandas.DataFrame(ROWS), label="verdct")
    with pytest.raises(InputError, match="a DataFrame, an Arrow table or a Dataset is needed, found int"):
        Task.from_data(3)
    frame = pandas.DataFrame({"text": ["x", "y", "z"], "label": ["a", "b", None]})
    with pytest.raises(InputError, match="row 2: the label is missing"):
        _ = Task.from_data(frame).train


def test_a_label_outside_the_words_names_the_task_once() -> None:
    with pytest.raises(InputError) as refused:
        compare("embedded", demonstrations=[("fine", "Great")], labels=["bad", "good"], queries=["dull"], lr=1.0)
    assert str(refused.value).startswith("task 'examples', row 0: label 'Great' is outside the label words")


def test_one_query_is_one(cli: Callable[..., Any], task_file: Callable[..., Path]) -> None:
    said = cli("validate", task_file("text,label\na fine film,good\na dull plot,bad\n")).out
    assert "lengths of 1 query in characters" in said
