"""Tables that people hold in Python: pandas, polars, Arrow, `Dataset` of datasets. None of them is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualscope.core.errors import InputError
from dualscope.tasks.sources import DataRow

LABELS = ("label", "labels", "class", "target", "category", "sentiment", "y")
"""What a column of labels is usually called."""
MOST_CLASSES = 100


def rows_of(data: Any) -> list[DataRow] | None:
    """The rows of a table, a mapping each; None where it is no table.

    >>> import pandas, polars
    >>> rows_of(pandas.DataFrame({"text": ["a"], "label": [1]})) == rows_of(polars.DataFrame({"text": "a", "label": 1}))
    True
    >>> rows_of([("a", 1)])
    """
    for method, arguments in (("to_dicts", ()), ("to_pylist", ()), ("to_list", ()), ("to_dict", ("records",))):
        if hasattr(data, "columns") or hasattr(data, "column_names"):
            take = getattr(data, method, None)
            if take is not None:
                return list(take(*arguments))
    return None


def label_words(data: Any, column: str) -> list[str] | None:
    """The names of a `ClassLabel` column of datasets, in the order of its numbers."""
    names = getattr(getattr(data, "features", {}).get(column), "names", None)
    return None if names is None else [str(name).replace("_", " ") for name in names]


def label_column(rows: Sequence[DataRow]) -> str:
    """The column that holds the labels: by its name, else the one of few values that come again."""
    columns = list(rows[0])
    by_name = {str(name).casefold(): name for name in columns}
    if found := next((by_name[name] for name in LABELS if name in by_name), None):
        return str(found)
    few = [name for name in columns if 2 <= len({str(row[name]) for row in rows}) <= min(MOST_CLASSES, len(rows) // 2)]
    if len(few) == 1:
        return str(few[0])
    raise InputError(
        f"which column holds the labels cannot be told ({', '.join(map(str, columns))}); say it: label='COLUMN'"
    )


def text_column(rows: Sequence[DataRow], label: str) -> str:
    """The column with the longest texts."""
    lengths: dict[str, int] = {}
    for name in rows[0]:
        texts = [row[name] for row in rows if isinstance(row[name], str)]
        if name != label and texts:
            lengths[str(name)] = sum(map(len, texts))
    if not lengths:
        raise InputError(f"no column of texts beside '{label}' ({', '.join(map(str, rows[0]))})")
    return max(lengths, key=lengths.__getitem__)


def words_in(rows: Sequence[Mapping[str, Any]], label: str) -> list[str]:
    """The labels that are there, as words; numbers are no words."""
    values = [row[label] for row in rows if row[label] is not None and row[label] == row[label]]
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            f"the labels in '{label}' are numbers: give the words they stand for, labels=['Negative', 'Positive']"
        )
    return sorted({value.strip() for value in values} - {""})
