"""Are the gradient learners the same thing?"""

from __future__ import annotations

from dualscope.findings.summary import ALL_TASKS
from dualscope.report.charts.chart import Chart, Item, Section
from dualscope.report.charts.dots import Series, panels_of
from dualscope.report.data import Data
from dualscope.report.published import publications
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
    groups = [_series(subject) for subject in data.subjects]
    items: list[Item] = []
    if any(groups):
        panels = panels_of(groups, data.subjects, "alpha")
        rows: list[list[Entry]] = [
            [subject.name, row["task"], row["label"], row["reference"] or "", row["variant"], Number.of(row)]
            for subject in data.subjects
            for row in subject.rows
            if row["metric"] == "alpha"
        ]
        items.append(
            Chart(
                "alpha-by-task",
                "alpha by task",
                "The cosine between the changes of the attention maps under two gradient learners, on the "
                "trained model. The table has all variants and controls.",
                f"1: both move attention the same way. Published: {_published()}, for GD and LCGD.",
                panels,
                Table.build(["model", "task", "learner", "against", "variant", "alpha"], rows),
                ("alpha",),
            )
        )
    about = (
        "Plain GD and layer-causal GD (LCGD: every layer learns from its own loss) see the same demonstrations; "
        "alpha says whether they do the same."
    )
    missing = "" if items else "`alpha`, which needs gd and a second gradient learner"
    return Section("alpha", "GD against layer-causal GD", tuple(items), about, folded=True, unmeasured=missing)


def _published() -> str:
    values = sorted(f.value for f in publications().figures if f.metric == "alpha")
    return f"{values[0]:g} to {values[-1]:g} ({publications().label})"


def _series(subject: Subject) -> list[Series]:
    found: dict[tuple[str, str], Series] = {}
    for row in subject.rows:
        if row["metric"] != "alpha" or row["variant"] != "trained" or row["task"] == ALL_TASKS:
            continue
        if row["role"] != "hypothesis":
            continue
        name = f"{row['label']} and {row['reference']}"
        key = (row["label"], row["reference"] or "")
        found.setdefault(key, Series(name, subject.colour(row["label"]), "circle")).rows[row["task"]] = Number.of(row)
    return list(found.values())
