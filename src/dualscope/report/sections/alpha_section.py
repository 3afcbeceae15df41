"""Are the gradient learners the same thing?"""

from __future__ import annotations

from dualscope.report.charts.chart import Chart, Section
from dualscope.report.charts.chart_makers import dots, rows_of
from dualscope.report.charts.dots import Series
from dualscope.report.data import Data
from dualscope.report.published import publications
from dualscope.report.subject import Subject, where
from dualscope.report.table import Number


def section(data: Data) -> Section:
    shell = Chart(
        "alpha-by-task",
        "alpha by task",
        "The cosine between the changes of the attention maps under two gradient learners, on the trained model. The "
        "table has all variants and controls.",
        f"1: both move attention the same way. Published: {_published()}, for GD and LCGD.",
        metrics=("alpha",),
    )
    columns = ["model", "task", "learner", "against", "variant", "alpha"]
    chart = dots(
        shell, data, "alpha", _series, columns, rows_of(data, ["task", "label", "reference", "variant"], metric="alpha")
    )
    items = () if chart is None else (chart,)
    about = (
        "Plain GD and layer-causal GD (LCGD: every layer learns from its own loss) see the same demonstrations; "
        "alpha says whether they do the same."
    )
    missing = "" if items else "`alpha`, which needs gd and a second gradient learner"
    return Section("alpha", "GD against layer-causal GD", items, about, folded=True, unmeasured=missing)


def _published() -> str:
    values = sorted(f.value for f in publications().figures if f.metric == "alpha")
    return f"{values[0]:g} to {values[-1]:g} ({publications().label})"


def _series(subject: Subject) -> list[Series]:
    found: dict[tuple[str, str], Series] = {}
    for row in where(subject.rows, metric="alpha", variant="trained", role="hypothesis", task=subject.tasks):
        name = f"{row['label']} and {row['reference']}"
        key = (row["label"], row["reference"] or "")
        found.setdefault(key, Series(name, subject.colour(row["label"]), "circle")).rows[row["task"]] = Number.of(row)
    return list(found.values())
