"""What is printed after a run: accuracies, then similarities with their baselines beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dualscope.core.rows import SummaryRow
from dualscope.core.spec import EpisodeSpec, LearnerSpec
from dualscope.core.words import ROLES, VARIANTS
from dualscope.findings.answer import short
from dualscope.findings.summary import ALL_TASKS

HEADS: tuple[Literal["model", "task"], ...] = ("model", "task")
SHOWN = ("sim_aou", "sim_aou_centered", "sim_am", "sim_am_delta")


def number(row: SummaryRow | None) -> str:
    """A value with its interval.

    >>> number({"value": 0.31, "low": 0.2, "high": 0.4})
    '.31 [.20, .40]'
    """
    if row is None or not math.isfinite(row["value"]):
        return "-"
    ends = [row["low"], row["high"]]
    shown = f" [{short(ends[0])}, {short(ends[1])}]" if all(map(math.isfinite, ends)) else ""
    return short(row["value"]) + shown


def _entry(row: SummaryRow | None) -> Text:
    """A value with its interval, and every seed's value below it: a mean may be one seed's doing."""
    text = Text(number(row).replace(", ", ",\N{NO-BREAK SPACE}"))
    if row is not None and len(row["each"]) > 1 and math.isfinite(row["value"]):
        text.append("\n" + "\N{NO-BREAK SPACE}".join(map(short, row["each"])), style="dim")
    return text


def _names(rows: Sequence[SummaryRow]) -> list[str]:
    """Each row's learner with what tells it from the other rows: its options; all else only where it varies."""
    rates: dict[tuple[str, str], set[float | None]] = {}
    for row in rows:
        rates.setdefault((row["task"], LearnerSpec.of_row(row).label), set()).add(row["lr"])
    labels = {row["demo_labels"] for row in rows}
    shots = {row["shots"] for row in rows if row["shots"]}
    unusual = [EpisodeSpec.of_row(row).unusual for row in rows]
    varied = {name for own in unusual for name in own if any(own[name] != other.get(name) for other in unusual)}
    names = []
    for row, own in zip(rows, unusual, strict=True):
        parts = [label := LearnerSpec.of_row(row).label]
        if shown := [f"{name}={own[name]}" for name in sorted(varied & own.keys())]:
            parts.append(",".join(shown))
        if len(rates[row["task"], label]) > 1 and row["lr"] is not None:
            parts.append(f"lr {row['lr']:g}")
        if len(labels) > 1 and row["role"] != "baseline":
            parts.append(f"{row['demo_labels']} labels")
        if len(shots) > 1 and row["shots"]:
            parts.append(f"{row['shots']} shots")
        names.append(" ".join(parts))
    return names


def _rank(row: SummaryRow) -> int:
    """Zero-shot, in-context, the learners under test, then ceilings and nulls."""
    return ROLES.index(row["role"])


def accuracy_table(rows: Sequence[SummaryRow]) -> Table:
    """Rows: task and learner. Columns: variants."""
    return _table("accuracy", [row for row in rows if row["metric"] == "accuracy" and row["task"] != ALL_TASKS])


def similarity_table(rows: Sequence[SummaryRow], metric: str) -> Table:
    """A metric by learner and variant: the mean over tasks where there are several."""
    chosen = [row for row in rows if row["metric"] == metric]
    over_tasks = [row for row in chosen if row["task"] == ALL_TASKS]
    tasks = len({row["task"] for row in chosen} - {ALL_TASKS})
    return _table(f"{metric}, mean of {tasks} tasks" if over_tasks else metric, over_tasks or chosen)


def _table(title: str, rows: Sequence[SummaryRow]) -> Table:
    """One line for what differs in nothing but the variant, and a column a variant."""
    heads = [name for name in HEADS if len({row[name] for row in rows}) > 1]
    references = {row["reference"] for row in rows}
    tails = ["reference"] if len(references) > 1 else []
    variants = [variant for variant in VARIANTS if any(row["variant"] == variant for row in rows)]
    lines: dict[tuple[str, ...], dict[str, SummaryRow]] = {}
    rows = sorted(rows, key=lambda row: (*(row[head] for head in heads), _rank(row)))
    for row, name in zip(rows, _names(rows), strict=True):
        key = (*(row[head] for head in heads), name, *(row["reference"] or "" for _ in tails))
        lines.setdefault(key, {})[row["variant"]] = row
    against = f" (against {references.pop()})" if references - {None} and not tails else ""
    table = Table(title=title + against, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in (*heads, "learner", *tails):
        # names are never cut: where room is short, an interval goes to a line of its own
        table.add_column({"reference": "against"}.get(column, column), no_wrap=True)
    for variant in variants:
        table.add_column(variant, justify="right", overflow="fold")
    previous: tuple[str, ...] = ()
    for key, found in lines.items():
        place = key[: len(heads)]
        shown = ("",) * len(heads) + key[len(heads) :] if place == previous else key
        table.add_row(*map(Text, shown), *(_entry(found.get(variant)) for variant in variants))
        previous = place
    return table


def result_tables(rows: Sequence[SummaryRow]) -> RenderableType:
    """Everything that is printed of a summary."""
    parts: list[RenderableType] = []
    if any(row["metric"] == "accuracy" for row in rows):
        parts.append(accuracy_table(rows))
    for metric in SHOWN:
        if any(row["metric"] == metric for row in rows):
            parts.append(similarity_table(rows, metric))
    some = next(iter(rows), None)
    if some is not None:
        seeds = max(row["seeds"] for row in rows)
        parts.append(
            Text(
                f"in brackets: 95 % intervals over {seeds} seed{'s' * (seeds != 1)} x queries"
                + ("; below: every seed's value" if seeds > 1 else ""),
                style="dim",
            )
        )
    return Group(*parts)
