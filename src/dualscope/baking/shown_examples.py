"""Demonstrations of one's own from a file: the task that they make, with what is left over to ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import text_of
from dualscope.tasks import Task
from dualscope.tasks.sources import FORMATS, DataRow, read_rows
from dualscope.tasks.task_config import TaskConfig

TEMPLATE = "Sentence: {text} Label:"
SHOWN, ASKED = "shown", "asked"


class _Given:
    """Rows that were read already, by split."""

    def __init__(self, splits: Mapping[str, tuple[Path, Sequence[DataRow]]]) -> None:
        self._splits = splits

    def rows(self, split: str) -> list[DataRow]:
        return list(self._splits[split][1])

    def where(self, split: str) -> str:
        return str(self._splits[split][0])

    def file(self, split: str) -> None:
        return None


def rows_of_file(path: Path) -> list[DataRow]:
    """A table (csv, tsv, jsonl, parquet), or a prompt file: a line a demonstration, ``TEXT => LABEL``.

    Raises:
        InputError: The file cannot be read, or a line has no arrow.
    """
    if path.suffix.lower() in FORMATS:
        return read_rows(path)
    rows: list[DataRow] = []
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        text, arrow, label = line.rpartition("=>")
        if not arrow or not text.strip() or not label.strip():
            raise InputError(
                f'{path}, line {number}: a demonstration is a text, => and a label, as in "a fine film => Positive"; '
                f"a table has another ending ({', '.join(FORMATS)})"
            )
        rows.append({"text": text.strip(), "label": label.strip()})
    if not rows:
        raise InputError(f'{path}: no demonstrations in it; write one a line, as in "a fine film => Positive"')
    return rows


def task_of_files(
    shown: Path, asked: Path | None = None, template: str | None = None, labels: Sequence[str] | None = None
) -> Task:
    """The task of a file's demonstrations; queries come from ``asked``, or are those that no draw has shown.

    Columns are called as the template's fields, and ``label``. Label words are those of the file, in the order in which
    they come, where none are given.
    """
    rows = {SHOWN: (shown, rows_of_file(shown))}
    if asked is not None:
        rows[ASKED] = (asked, rows_of_file(asked))
    words = list(labels or dict.fromkeys(str(row["label"]) for row in rows[SHOWN][1] if "label" in row))
    fields = {
        "name": "examples",
        "source": {"files": {split: str(path) for split, (path, _) in rows.items()}},
        "splits": {"train": SHOWN, "evaluation": SHOWN if asked is None else ASKED},
        "template": TEMPLATE if template is None else template,
        "labels": words,
    }
    if len(words) < 2:
        raise InputError(
            f"{shown}: two labels or more are needed in the column 'label', found {', '.join(words) or 'none'}; give "
            "other label words with --label"
        )
    task = Task(validated(TaskConfig, fields, str(shown)), _Given(rows))
    task.train  # noqa: B018 (a row that cannot be used is said now)
    return task
