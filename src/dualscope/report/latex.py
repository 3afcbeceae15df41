"""The answers as a LaTeX table: booktabs, a line a task and learner, values with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualscope.core.spec import EpisodeSpec
from dualscope.findings.answer import PRIMARY, short
from dualscope.report.data import Data
from dualscope.report.page import put
from dualscope.report.subject import Subject

ANSWERED = ("above the controls", "not above")

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def write_latex(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the table of one or more runs; returns where it is."""
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
