"""Tables of figures as Markdown has them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def found(row: Mapping[str, Any] | None) -> str:
    """A row of a summary, or an interval of a verdict, as text; empty where there is no number.

    Every seed's value stands on a line of its own: a mean may be one seed's doing.

    >>> found({"mean": 0.304, "low": -0.1, "high": 1.25}), found(None)
    ('.30 [-.10, 1.25]', '')
    >>> found({"mean": 0.3, "low": 0.1, "high": 0.5, "each": [0.2, 0.4]})
    '.30 [.10, .50]<br>.20 .40'
    """
    if row is None:
        return ""
    value = row.get("value", row.get("mean"))
    if value is None or not math.isfinite(value):
        return ""
    ends = [row.get("low"), row.get("high")]
    numbers = [end for end in ends if end is not None and math.isfinite(end)]
    interval = f" [{_short(numbers[0])}, {_short(numbers[1])}]" if len(numbers) == 2 else ""
    each = row.get("each", ())
    seeds = "<br>" + " ".join("–" if not math.isfinite(one) else _short(one) for one in each) if len(each) > 1 else ""
    return _short(value) + interval + seeds


def _short(value: float) -> str:
    text = f"{value:.2f}"
    text = "0.00" if text == "-0.00" else text
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
