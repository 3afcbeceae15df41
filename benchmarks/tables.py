"""Tables of figures as Markdown has them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def found(row: Mapping[str, Any] | None) -> str:
    """A row of a summary, or an interval of a verdict, as text; empty where there is no number.

    >>> found({"mean": 0.304, "low": -0.1, "high": 1.25}), found(None)
    ('.30 [-.10, 1.25]', '')
    """
    if row is None:
        return ""
    value = row.get("value", row.get("mean"))
    if value is None or not math.isfinite(value):
        return ""
    ends = [row.get("low"), row.get("high")]
    numbers = [end for end in ends if end is not None and math.isfinite(end)]
    interval = f" [{_short(numbers[0])}, {_short(numbers[1])}]" if len(numbers) == 2 else ""
    return _short(value) + interval


def _short(value: float) -> str:
    text = f"{value:.2f}"
    text = "0.00" if text == "-0.00" else text
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
