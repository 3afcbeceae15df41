"""What is printed after a run: accuracies, then similarities with their baselines beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dualscope.studies.config import VARIANTS
from dualscope.studies.summary import ALL_TASKS, Row

SHOWN = ("sim_aou", "sim_aou_centered", "sim_am", "sim_am_delta")


def number(row: Row | None) -> str:
    """A value with its interval.

    >>> number({"value": 0.31, "low": 0.2, "high": 0.4})
    '.310 [.200, .400]'
    """
    if row is None or not math.isfinite(row["value"]):
        return "-"
    ends = [row["low"], row["high"]]
    shown = f" [{_short(ends[0])}, {_short(ends[1])}]" if all(map(math.isfinite, ends)) else ""
    return _short(row["value"]) + shown


def _short(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and text not in ("1.000", "-1.000") else text


def _name(row: Row) -> str:
    """A learner with what tells it from others of its name."""
    parts = [row["learner"]]
    if row["options"] not in (None, "{}"):
        parts.append(row["options"])
    if row["lr"] is not None:
        parts.append(f"lr {row['lr']:g}")
    if row["demo_labels"] != "gold":
        parts.append(f"{row['demo_labels']} labels")
    if row["shots"]:
        parts.append(f"{row['shots']} shots")
    return " ".join(parts)


def accuracy_table(rows: Sequence[Row]) -> Table:
    """Rows: task and learner. Columns: variants."""
    chosen = [row for row in rows if row["metric"] == "accuracy"]
    return _table("accuracy", [row for row in chosen if row["task"] != ALL_TASKS])


def similarity_table(rows: Sequence[Row], metric: str) -> Table:
    """A metric by learner and variant: the mean over tasks where there are several."""
    chosen = [row for row in rows if row["metric"] == metric]
    over_tasks = [row for row in chosen if row["task"] == ALL_TASKS]
    return _table(metric, over_tasks or chosen)


def _table(title: str, rows: Sequence[Row]) -> Table:
    """One line for what differs in nothing but the variant, and a column a variant."""
    several = len({row["model"] for row in rows}) > 1
    against = any(row["reference"] for row in rows)
    variants = [variant for variant in VARIANTS if any(row["variant"] == variant for row in rows)]
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        head = (row["model"], row["task"]) if several else (row["task"],)
        tail = (row["reference"] or "",) if against else ()
        lines.setdefault((*head, _name(row), *tail), {})[row["variant"]] = row
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in (["model"] if several else []) + ["task", "learner"] + (["against"] if against else []):
        table.add_column(column)
    for variant in variants:
        table.add_column(variant, justify="right")
    previous = ""
    for key, found in lines.items():
        place = " ".join(key[: 1 + several])
        shown = ["" if i <= several and place == previous else part for i, part in enumerate(key)]
        table.add_row(*map(Text, shown), *(number(found.get(variant)) for variant in variants))
        previous = place
    return table


def result_tables(rows: Sequence[Row]) -> RenderableType:
    """Everything that is printed of a summary."""
    parts: list[RenderableType] = [accuracy_table(rows)]
    for metric in SHOWN:
        if any(row["metric"] == metric for row in rows):
            parts += ["", similarity_table(rows, metric)]
    some = next(iter(rows), None)
    if some is not None:
        seeds = max(row["seeds"] for row in rows)
        parts.append(
            Text(f"in brackets: 95 % intervals over {seeds} seed{'s' * (seeds != 1)} x queries", style="dim")
        )
    return Group(*parts)
