"""The answers as a LaTeX table: booktabs, a line a task and learner, values with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualscope.core.errors import InputError
from dualscope.findings.answer import PRIMARY
from dualscope.report.data import Data
from dualscope.report.table import Number

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
                decided = next(
                    (c for c in answer["comparisons"] if c["control"] == answer["decided_by"]), None
                )
                against = "--" if decided is None else f"{escaped(decided['control'])}"
                control = None if decided is None else decided["control_value"]
                cells = [escaped(subject.name)] if data.side_by_side else []
                cells += [escaped(answer["task"]), rf"\texttt{{{escaped(answer['learner'])}}}"]
                cells += [_number(Number.of(answer["value"])), against, _number(Number.of(control))]
                lines.append(" & ".join([*cells, escaped(answer["answer"])]) + r" \\")
    heads = ["model"] * data.side_by_side + [
        "task",
        "learner",
        escaped(PRIMARY),
        "nearest control",
        "its value",
    ]
    columns = "l" * (len(heads) - 3) + "rlrl"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}; in brackets: 95 % intervals over seeds and queries",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join([*heads, "answer"]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _number(number: Number) -> str:
    if number.value is None:
        return "--"
    text = f"{number.text} {number.interval}".strip().replace("\N{MINUS SIGN}", "-")
    return "$" + text.replace(" [", r"\;[") + "$"


def escaped(text: str) -> str:
    """Text as LaTeX prints it.

    >>> escaped("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(SPECIAL.get(mark, mark) for mark in text)
