"""The answers of a run as one small table: a line a task and learner.

The terminal and Python show the same table; for papers it is written as LaTeX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dualscope.core.folder import check_not_kept
from dualscope.core.rows import SummaryRow
from dualscope.core.spec import EpisodeSpec, LearnerSpec
from dualscope.core.words import ROLES
from dualscope.findings.answer import PRIMARY, short
from dualscope.findings.summary import ALL_TASKS
from dualscope.report.page import put
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject

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


ANSWERED = ("above the controls", "not above")

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def write_latex(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the table of one or more runs; returns where it is."""
    check_not_kept("--latex", Path(out))
    return put(Path(out), latex_table(Data(runs)), f"--latex {out}")


def latex_table(data: Data) -> str:
    r"""``\usepackage{booktabs}`` is all that it needs. What moves when the labels change, where that was measured; else
    the likeness of the whole change beside its strongest control.
    """
    judged = [(subject, verdict) for subject in data.subjects for verdict in _responses(subject)]
    if judged:
        return _response_table(judged, data.side_by_side)
    lines = []
    for subject in data.subjects:
        for verdict in subject.verdicts()[:1]:
            lines += [_likeness_line(subject, answer, data.side_by_side) for answer in verdict["answers"]]
    heads = ["model"] * data.side_by_side + ["task", "learner", escaped(PRIMARY), "strongest control", "its value"]
    said = [
        "in brackets: 95 % intervals over seeds and queries; strongest control: the one that leaves least of the",
        "likeness, named where there is an answer",
    ]
    return _tabular("l" * (len(heads) - 3) + "rlrl", [*heads, "answer"], lines, said)


def _likeness_line(subject: Subject, answer: Mapping[str, Any], with_model: bool) -> str:
    answered = answer["answer"] in ANSWERED
    decided = next((c for c in answer["comparisons"] if c["control"] == answer["decided_by"] and answered), None)
    cells = [escaped(subject.name)] if with_model else []
    other = "" if answer["measure"] == PRIMARY else rf" ({escaped(answer['measure'])})"
    cells += [escaped(answer["task"]), rf"\texttt{{{escaped(answer['learner'])}}}", _number(answer["value"]) + other]
    cells += ["--" if decided is None else escaped(decided["control"])]
    cells += [_number(None if decided is None else decided["control_value"]), escaped(answer["answer"])]
    return " & ".join(cells) + r" \\"


def _responses(subject: Subject) -> list[Mapping[str, Any]]:
    """The answers about this subject's model on trained weights."""
    return [
        verdict
        for verdict in subject.source.response_verdicts
        if verdict["variant"] == "trained"
        and EpisodeSpec.of_row(verdict["setting"]).model.name == subject.reading.model.name
    ]


def _response_table(judged: Sequence[tuple[Subject, Mapping[str, Any]]], with_model: bool) -> str:
    """The answers, and below them what happens inside; a column less where all are of one task."""
    asked = [(subject, answer) for subject, verdict in judged for answer in verdict["answers"]]
    tasks = len({answer["task"] for _, answer in asked}) > 1
    heads = ["model"] * with_model + ["task"] * tasks + ["learner", "response", "if it were", "answer"]
    lines: list[str] = []
    for where, title in (("answers", "what the model answers"), ("inside", "inside the model")):
        own = [(subject, answer) for subject, answer in asked if answer["where"] == where]
        if own:
            lines += [r"\midrule"] * bool(lines)
            lines.append(rf"\multicolumn{{{len(heads)}}}{{@{{}}l}}{{\emph{{{title}}}}} \\")
        for subject, answer in own:
            cells = [escaped(subject.name)] * with_model + [escaped(answer["task"])] * tasks
            cells += [rf"\texttt{{{escaped(answer['learner'])}}}", _response(answer["value"])]
            cells += [_plain(answer["target"]), escaped(answer["answer"])]
            lines.append(" & ".join(cells) + r" \\")
    about = "" if tasks else f"; task: {escaped(asked[0][1]['task'])}" if asked else ""
    said = [
        f"in brackets: 95 % intervals over seeds{about}; 0 is chance, `if it were': what we would see if in-context",
        "learning were this learner",
    ]
    return _tabular("l" * (len(heads) - 3) + "rrl", heads, lines, said)


def _tabular(columns: str, heads: Sequence[str], lines: Sequence[str], said: Sequence[str]) -> str:
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            *(f"% {line}" for line in said),
            r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}\noindent",
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}\endgroup",
            "",
        ]
    )


def _plain(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "--"
    return f"${short(value)}$".replace("\N{MINUS SIGN}", "-")


def _response(value: Mapping[str, Any]) -> str:
    """A correlation over seeds and its interval."""
    return _number({**value, "mean": math.nan if value["mean"] is None else value["mean"], **_ends(value)})


def _ends(value: Mapping[str, Any]) -> dict[str, float]:
    return {end: math.nan if value[end] is None else value[end] for end in ("low", "high")}


def _number(interval: Mapping[str, Any] | None) -> str:
    """A value and its interval, as papers print cosines."""
    if interval is None or not interval["seeds"] or not math.isfinite(interval["mean"]):
        return "--"
    ends = [interval["low"], interval["high"]]
    shown = rf"\,[{short(ends[0])}, {short(ends[1])}]" if all(map(math.isfinite, ends)) else ""
    return f"${short(interval['mean'])}{shown}$".replace("\N{MINUS SIGN}", "-")


def escaped(text: str) -> str:
    """Text as LaTeX prints it.

    >>> escaped("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(SPECIAL.get(mark, mark) for mark in text)
