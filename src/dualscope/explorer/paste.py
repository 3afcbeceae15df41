"""Examples from a table that was pasted: with a header or without, separated by commas, semicolons or tabs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from dualscope.core.config_file import validated
from dualscope.core.errors import InputError
from dualscope.explorer.start import typed
from dualscope.tasks.mapping import to_examples
from dualscope.tasks.sources import separated
from dualscope.tasks.task_config import TaskConfig

PLACE = Path("what was pasted")  # what an error calls it


def pasted(text: str, template: str, labels: list[str]) -> list[dict[str, Any]]:
    """Rows of pasted CSV or TSV as examples.

    >>> pasted("text,label\\na fine film,good", "{text} It was", ["bad", "good"])
    [{'fields': {'text': 'a fine film'}, 'label': 1}]
    >>> pasted("a fine film\\tgood", "{text} It was", ["bad", "good"])[0]["label"]
    1
    """
    listed = {"demonstrations": [{"x": "x"}], "queries": [{"x": "x"}]}
    config = validated(TaskConfig, {"name": "pasted", "template": template, "labels": labels, **listed}, "the task")
    columns = [*config.field_names, *config.label]
    first = next((line for line in text.splitlines() if line.strip()), "")
    mark = next((mark for mark in "\t;," if first.count(mark) >= len(columns) - 1), ",")
    if not {column.strip().strip('"') for column in first.split(mark)} >= set(columns):
        text = mark.join(columns) + "\n" + text  # no header: the template's fields, then the label
    rows = list(separated(PLACE, io.StringIO(text, newline=""), mark))
    if not rows:
        raise InputError(f"{PLACE}: no line of {', '.join(columns)} was found")
    return [typed(example) for example in to_examples(rows, config, "pasted", str(PLACE))]
