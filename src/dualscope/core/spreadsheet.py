"""Texts in CSV files that a spreadsheet would take for formulas: they get an apostrophe before them.

A name such as ``=cmd|...`` could start a program. Spreadsheets hide the apostrophe, and we take it off again.
"""

from __future__ import annotations

from typing import Any

FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "＝",
    "＋",
    "－",
    "＠",
)  # the last are wide: some read them as the others


def as_text(value: Any) -> Any:
    """A value as it stands in a CSV file; numbers stay what they are.

    >>> as_text("=1+1"), as_text("sst2"), as_text(-0.5), as_text(None)
    ("'=1+1", 'sst2', -0.5, None)
    """
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def from_text(value: str) -> str:
    """What `as_text` was given.

    >>> from_text(as_text("@x")), from_text(as_text("'=1")), from_text("it's")
    ('@x', "'=1", "it's")
    """
    return value[1:] if value.startswith("'") and _is_formula(value[1:]) else value


def _is_formula(text: str) -> bool:
    return text.lstrip("'").startswith(FORMULA)
