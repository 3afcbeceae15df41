"""Do both attend to the same demonstration tokens?"""

from __future__ import annotations

from dualscope.report.charts.chart import Chart, Item, Section
from dualscope.report.charts.chart_makers import dots, rows_of
from dualscope.report.charts.dots import Series, series_of
from dualscope.report.data import Data
from dualscope.report.published import publications
from dualscope.report.subject import Subject

NULLS = {
    "kendall_random": ("random scores", "line-ns-open"),
    "kendall_shift": ("shifted scores", "square-open"),
    "kendall_recency": ("recency alone", "triangle-up-open"),
}
DUAL = "diamond-open"
NAMES = (
    "kendall",
    "kendall_dual",
    "kendall_raw",
    "kendall_demonstrations",
    "kendall_recall",
    "kendall_recall_chance",
    *NULLS,
)


def section(data: Data) -> Section:
    items: list[Item] = [chart for chart in [_chart(data)] if chart is not None]
    about = "ICL attends to demonstration tokens; the dual of a gradient step does too. Do they rank them alike?"
    missing = "" if items else "Kendall's tau (`metrics: [default, kendall]` in a study)"
    return Section("kendall", "Attention to demonstrations", tuple(items), about, folded=True, unmeasured=missing)


def _series(subject: Subject) -> list[Series]:
    learners = subject.gradient_learners
    found = series_of(subject, "kendall", learners, ["trained"], ("in-context",))
    found += [
        Series(f"{s.name}, exact dual's keys", s.colour, DUAL, s.rows)
        for s in series_of(subject, "kendall_dual", learners, ["trained"], ("in-context",))
    ]
    for metric, (name, symbol) in NULLS.items():
        first = series_of(subject, metric, learners[:1], ["trained"], ("in-context",))
        found += [Series(name, "@grey", symbol, s.rows) for s in first]
    return found


def _chart(data: Data) -> Chart | None:
    known = {f.size: f.value for f in publications().figures if f.metric == "kendall"}
    said = ", ".join(f"{value:g} for {size} parameters" for size, value in known.items())
    shell = Chart(
        "kendall-by-task",
        "Kendall's tau by task",
        "The rank correlation, over demonstration tokens, of ICL's attention scores with the scores that the "
        "fine-tuned model's update gives the same tokens; mean over layers and the first queries.",
        "0 is none in common; a learner says something only to the right of the grey marks. "
        f"Published: {said} (Dai et al. 2023, mean over their tasks).",
        metrics=("kendall", "kendall_dual"),
    )
    columns = ["model", "task", "learner", "variant", "metric", "value"]
    return dots(
        shell, data, "tau-b", _series, columns, rows_of(data, ["task", "label", "variant", "metric"], metric=NAMES)
    )
