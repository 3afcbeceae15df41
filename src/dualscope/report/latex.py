"""The answers as a LaTeX table: booktabs, a line a task and learner, values with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError
from dualscope.findings.answer import PRIMARY, short
from dualscope.report.data import Data

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def write_latex(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the table of one or more runs; returns where it is."""
    target = Path(out)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(latex_table(Data(runs)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--latex {out}: cannot be written ({error.strerror})") from None
    return target


def latex_table(data: Data) -> str:
    r"""``\usepackage{booktabs}`` is all that it needs."""
    lines = []
    for subject in data.subjects:
        for verdict in subject.verdicts()[:1]:
            for answer in verdict["answers"]:
                decided = next((c for c in answer["comparisons"] if c["control"] == answer["decided_by"]), None)
                against = "--" if decided is None else f"{escaped(decided['control'])}"
                control = None if decided is None else decided["control_value"]
                cells = [escaped(subject.name)] if data.side_by_side else []
                cells += [escaped(answer["task"]), rf"\texttt{{{escaped(answer['learner'])}}}"]
                cells += [_number(answer["value"]), against, _number(control)]
                lines.append(" & ".join([*cells, escaped(answer["answer"])]) + r" \\")
    heads = ["model"] * data.side_by_side + ["task", "learner", escaped(PRIMARY), "nearest control", "its value"]
    columns = "l" * (len(heads) - 3) + "rlrl"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}; in brackets: 95 % intervals over seeds and queries",
            r"\begingroup\small\setlength{\tabcolsep}{3pt}\noindent",
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            " & ".join([*heads, "answer"]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}\endgroup",
            "",
        ]
    )


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
