"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """In one line; a bar would end the table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """A cell of plain words, where < begins no element; code in it stays as it is.

    >>> prose("`a<b` or <c>")
    '`a<b` or &lt;c>'
    """
    parts = cell(text).split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(text: str) -> str:
    """As code. A bar would end the table's cell, and escaped it shows its backslash on some pages: its twin."""
    return f"`{cell(text.replace('|', chr(0x2223)))}`" if text else ""
