"""Do both attend to the same demonstration tokens?"""

from __future__ import annotations

from dualscope.report.charts.chart import Chart, Item, Section
from dualscope.report.charts.dots import Series, panels_of, series_of
from dualscope.report.data import Data
from dualscope.report.published import publications
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table

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


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
    groups = [_series(subject) for subject in data.subjects]
    items: list[Item] = []
    if any(groups):
        items.append(_chart(data, groups))
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


SHAPES = {"line-ns-open": "bar", "square-open": "square", "triangle-up-open": "triangle", "diamond-open": "diamond"}


def _marks(groups: list[list[Series]]) -> str:
    """What each mark that is drawn stands for, and no other."""
    drawn = {series.symbol: series.name for group in groups for series in group if series.colour == "@grey"}
    said = [f"a grey {SHAPES[symbol]}: {name}" for symbol, name in drawn.items()]
    hollow = any(s.symbol == DUAL and s.colour != "@grey" for group in groups for s in group)
    first = "Filled: a learner" + (", hollow diamond: the same by the exact dual's keys" if hollow else "")
    return "; ".join([first, *said]) + "."


def _chart(data: Data, groups: list[list[Series]]) -> Chart:
    panels = panels_of(groups, data.subjects, "tau-b")
    rows: list[list[Entry]] = [
        [subject.name, row["task"], row["label"], row["variant"], row["metric"], Number.of(row)]
        for subject in data.subjects
        for row in subject.rows
        if row["metric"] in NAMES
    ]
    known = {f.size: f.value for f in publications().figures if f.metric == "kendall"}
    said = ", ".join(f"{value:g} for {size} parameters" for size, value in known.items())
    return Chart(
        "kendall-by-task",
        "Kendall's tau by task",
        "The rank correlation, over demonstration tokens, of ICL's attention scores with the scores that the "
        f"fine-tuned model's update gives the same tokens; mean over layers and the first queries. {_marks(groups)}",
        "0 is none in common; a learner says something only to the right of the grey marks. "
        f"Published: {said} (Dai et al. 2023, mean over their tasks).",
        panels,
        Table.build(["model", "task", "learner", "variant", "metric", "value"], rows),
        ("kendall", "kendall_dual"),
    )
