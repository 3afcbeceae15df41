"""Demonstrations from files of one's own."""

from pathlib import Path

import pytest

from dualscope.baking.shown_examples import rows_of_file, task_of_files
from dualscope.core.errors import InputError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_prompt_file_has_a_line_a_demonstration(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.txt", "a fine film => good\n\na => b => bad\n")
    task = task_of_files(file, template="Review: {text} It was")
    assert task.labels == ("good", "bad")
    assert [(task.prompt(e), task.answer(e.label)) for e in task.train] == [
        ("Review: a fine film It was", " good"),
        ("Review: a => b It was", " bad"),
    ]
    assert task.evaluation is task.train


def test_a_table_with_held_out_examples_in_another_kind_of_file(tmp_path: Path) -> None:
    shown = write(tmp_path / "shown.csv", 'text,label\n"a fine, warm film",good\na bore,bad\n')
    asked = write(tmp_path / "asked.jsonl", '{"text": "so dull", "label": "bad"}\n')
    task = task_of_files(shown, asked, labels=["bad", "good"])
    assert [(e.fields["text"], e.label) for e in task.train] == [("a fine, warm film", 1), ("a bore", 0)]
    assert [(e.fields["text"], e.label) for e in task.evaluation] == [("so dull", 0)]
    assert {e.id for e in task.train}.isdisjoint(e.id for e in task.evaluation)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "no arrow here\n", r"a.txt, line 1: a demonstration is a text, => and a label"),
        ("a.txt", "\n", "no demonstrations in it"),
        ("a.txt", "x => one\ny => one\n", "two labels or more are needed"),
        ("a.csv", "sentence,label\nx,a\ny,b\n", "needs the column 'text'; found sentence, label"),
        ("a.csv", "text,sentiment\nx,a\ny,b\n", "two labels or more are needed in the column 'label', found none"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        task_of_files(write(tmp_path / name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("no.csv", "no.txt"):
        with pytest.raises(InputError, match=r"no\."):
            rows_of_file(tmp_path / name)
