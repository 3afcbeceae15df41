"""Run folders of earlier versions, read as if they had been written today.

Before version 0.2 a learner under a control had a name of its own and rows had no `control` and no `role`; and a table
of queries said what its columns are in their names alone.
"""

from __future__ import annotations

import re

import pyarrow as pa

from dualscope.core.learning import ALIASES, Learning
from dualscope.core.query_columns import QueryColumn
from dualscope.core.rows import COLUMNS
from dualscope.core.words import CONTROL_ROLES, Role

_ROLES: dict[str, Role] = {
    "zero-shot": "baseline",
    "in-context": "reference",
    "null-context": "null",
    "zero-shot-offset": "null",
}
_COLUMN = re.compile(r"(?P<metric>[a-z0-9_]+?)(?:\[(?P<reference>.+)\])?(?P<layers>_layers)?")
_LABEL = re.compile(r"(?P<name>[^\[]+)(?:\[(?P<options>.*)\])?")
ADDED = ("control", "role", "queries_from")
"""Columns of rows that were not there before version 0.2."""
_FACTS = ("query", "label", "prediction", "label_logprobs")


def is_old(schema: pa.Schema) -> bool:
    return "control" not in schema.names


def upgraded(rows: pa.Table) -> pa.Table:
    """A cell's rows with the columns that they have today."""
    names = rows["learner"].to_pylist()
    found = [ALIASES.get(name, (name, None)) for name in names]
    roles = [
        _ROLES.get(name, "hypothesis") if control is None else CONTROL_ROLES[control]
        for name, control in found
    ]
    columns = {name: rows[name] for name in rows.column_names}
    columns["learner"] = pa.array([name for name, _ in found], pa.string())
    columns["control"] = pa.array([control for _, control in found], pa.string())
    columns["role"] = pa.array(roles, pa.string())
    columns["queries_from"] = pa.nulls(len(names), pa.string())
    references = [None if text is None else reference_label(text) for text in rows["reference"].to_pylist()]
    columns["reference"] = pa.array(references, pa.string())
    return pa.table({name: columns[name] for name in COLUMNS})


def reference_label(text: str) -> str:
    """A reference of an old row as it is labelled today.

    >>> reference_label("gd-redraw"), reference_label("Positive")
    ('gd under redraw', 'Positive')
    """
    learning = learning_called(text)
    return learning.label if learning.control is not None else text


def learning_called(label: str) -> Learning:
    """The learner of an old label, ``null-context[kind=scrambled]``; rates were not part of it."""
    found = _LABEL.fullmatch(label)
    name = found["name"] if found else label
    options = dict(
        part.split("=", 1) for part in ((found and found["options"]) or "").split(",") if "=" in part
    )
    name, control = ALIASES.get(name, (name, None))
    return Learning.of(name, options, control)


def upgraded_queries(table: pa.Table) -> pa.Table:
    """A table of queries whose columns say what they are."""
    fields = []
    for field in table.schema:
        found = _COLUMN.fullmatch(field.name)
        if field.name in _FACTS or found is None:
            fields.append(field)
            continue
        reference = None if found["reference"] is None else learning_called(found["reference"])
        column = QueryColumn(found["metric"], reference, found["layers"] is not None)
        fields.append(column.field(field.type))
    return pa.table(table.columns, schema=pa.schema(fields))
