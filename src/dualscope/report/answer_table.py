"""The answers of a run as one small table: a line a task and learner. Terminal and Python show the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dualscope.core.rows import SummaryRow
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import ROLES
from dualscope.findings.answer import short
from dualscope.findings.summary import ALL_TASKS

COLUMNS = ("model", "setting", "task", "learner", "accuracy", "answers", "inside", "likeness")
MEANING = {
    "answers": "answers, inside: how the answers, and the attention outputs, move when the labels change: 0 is chance, "
    "and `of` is what we would see if in-context learning were this learner",
    "likeness": "likeness: the cosine of the whole changes of the attention outputs (sim_aou); the word is about it",
}


@dataclass(frozen=True)
class AnswerLine:
    """What a run says of one learner on one task; a text is empty where it was not measured."""

    model: str
    setting: str  # the demonstrations, in words
    task: str
    learner: str
    accuracy: str = ""
    answers: str = ""
    inside: str = ""
    likeness: str = ""


def answer_lines(
    responses: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]], rows: Sequence[SummaryRow]
) -> list[AnswerLine]:
    """A line for every learner on every task, of trained weights: the baseline and the reference, then what is judged.

    Where responses were measured they are the answer; else the likeness of the whole change, with its own word.
    """
    likeness = {
        (verdict["setting"]["model"], answer["task"], answer["learner"]): answer
        for verdict in verdicts
        for answer in verdict["answers"]
    }
    judged = [verdict for verdict in responses if verdict["variant"] == "trained"]
    moved: dict[tuple[str, str, str], dict[str, str]] = {}
    for verdict in judged:
        for answer in verdict["answers"]:
            key = verdict["setting"]["model"], answer["task"], answer["learner"]
            moved.setdefault(key, {})[answer["where"]] = response_text(answer)
    found = []
    for row in _accuracies(rows):
        learner = LearnerSpec.of_row(row).label
        key = row["model"], row["task"], learner
        other = likeness.get(key)
        found.append(
            AnswerLine(
                row["model"],
                _setting(row),
                row["task"],
                learner,
                short(row["value"]) if math.isfinite(row["value"]) else "–",
                **moved.get(key, {}),
                likeness="" if judged or other is None else likeness_text(other),
            )
        )
    return found


def _accuracies(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """Of trained weights, what is judged or is a scale for it."""
    roles = ("baseline", "reference", "hypothesis")
    chosen = [
        row
        for row in rows
        if (row["metric"], row["variant"], row["control"]) == ("accuracy", "trained", None)
        and row["role"] in roles
        and row["task"] != ALL_TASKS
    ]
    places = {place: i for i, place in enumerate(dict.fromkeys((row["model"], row["task"]) for row in chosen))}
    return sorted(chosen, key=lambda row: (places[row["model"], row["task"]], ROLES.index(row["role"])))


def _setting(row: SummaryRow) -> str:
    if row["role"] == "baseline":
        return ""
    return f"{row['shots']} shots" + ("" if row["demo_labels"] == "gold" else f", {row['demo_labels']} labels")


def response_text(answer: Mapping[str, Any]) -> str:
    """A response, its scale and its word.

    >>> response_text({"value": {"mean": 0.25}, "target": 0.68, "answer": "partly alike"})
    '.25 of .68 partly alike'
    """
    value, target = answer["value"]["mean"], answer["target"]
    if value is None or not math.isfinite(value) or answer["answer"] in ("labels ignored", "labels copied"):
        return str(answer["answer"])
    scale = f" of {short(target)}" if target is not None and math.isfinite(target) else ""
    return f"{short(value)}{scale} {answer['answer']}"


def likeness_text(answer: Mapping[str, Any]) -> str:
    """A likeness, and what its controls leave of it."""
    value = answer["value"]
    if not value["seeds"] or value["mean"] is None or not math.isfinite(value["mean"]):
        return str(answer["answer"])
    return f"{short(value['mean'])} {answer['answer']}"


def answer_table(lines: Sequence[AnswerLine]) -> Table | None:
    """The columns that say something; None where there is no line."""
    if not lines:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [name for name in COLUMNS if _says_something(name, lines)]
    for name in shown:
        table.add_column(
            name, no_wrap=name in ("learner", "accuracy"), justify="right" if name == "accuracy" else "left"
        )
    previous: tuple[str, ...] = ()
    for line in lines:
        place = (line.model, line.task)
        cells = ["" if name in ("model", "task") and place == previous else str(getattr(line, name)) for name in shown]
        table.add_row(*map(Text, cells))
        previous = place
    return table


def meanings(lines: Sequence[AnswerLine]) -> list[str]:
    """What the columns mean, as far as they are shown."""
    return [text for name, text in MEANING.items() if any(getattr(line, name) for line in lines)]


def _says_something(name: str, lines: Sequence[AnswerLine]) -> bool:
    values = {getattr(line, name) for line in lines} - {""}
    return len(values) > 1 if name in ("model", "setting", "task") else name == "learner" or bool(values)
