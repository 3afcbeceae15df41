"""How alike the changes are: attention outputs and attention maps."""

from __future__ import annotations

from dualscope.findings.answer import metric_title
from dualscope.report.charts.chart import Chart, Item, Section, Tabs
from dualscope.report.charts.dots import Series, panels_of, published_of, series_of
from dualscope.report.data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table
from dualscope.report.ties import Marks

METRICS = {
    "sim_aou": "How alike the two changes of the attention output are: the primary measure.",
    "sim_aou_norm": "The older measure: attention outputs scaled to unit norm first. It is biased: "
    "independent random updates score above 0.",
    "sim_aou_centered": "What is left of sim_aou without the drift that all queries share.",
    "sim_am": "How alike the attention maps are after learning; to be read beside sim_am_zero_shot, which "
    "needs no fine-tuning.",
    "sim_am_delta": "How alike the two changes of the attention maps are.",
}


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
    marks = {id(subject): Marks(subject) for subject in data.subjects}
    made = [(name, chart) for name in METRICS if (chart := _chart(data, name, marks)) is not None]
    items: list[Item] = [Tabs("similarity-tabs", "Likeness of", tuple(made))] if made else []
    about = "One number for each task and learner: the mean over layers and queries, with the baselines beside it."
    missing = "" if made else "likeness: no gradient learner was run"
    return Section("similarity", "Likeness of the changes", tuple(items), about, folded=True, unmeasured=missing)


def _series(subject: Subject, metric: str) -> list[Series]:
    found = series_of(subject, metric, subject.gradient_learners, subject.variants, ("in-context",))
    if metric == "sim_am":
        found += series_of(subject, "sim_am_zero_shot", ["in-context"], ["trained"], ("zero-shot",))
        found = [
            Series("before fine-tuning", s.colour, "square-open", s.rows) if s.name == "in-context" else s
            for s in found
        ]
    if metric == "sim_aou":
        found += [
            Series("random direction", "@grey", "square-open", s.rows)
            for s in series_of(subject, "sim_aou_random", subject.gradient_learners[:1], ["trained"])
        ]
    found += published_of(subject, metric, subject.gradient_learners)
    return found


def _chart(data: Data, metric: str, marks: dict[int, Marks]) -> Chart | None:
    groups = [_series(subject, metric) for subject in data.subjects]
    if not any(groups):
        return None
    panels = panels_of(groups, data.subjects, metric)
    return Chart(
        f"similarity-{metric}",
        f"{metric_title(metric)} by task",
        f"{METRICS[metric]} Filled: the trained model. Hollow: the same learner on untrained weights, and on "
        "trained embeddings with all else untrained. Bars: 95 % intervals over seeds and queries.",
        "A filled dot says something only to the right of the hollow ones of its colour. In the table, the "
        "best learner of a task is marked, and as a tie where the paired interval of the difference "
        "contains 0.",
        panels,
        _table(data, metric, marks),
        (metric, *(("sim_am_zero_shot",) if metric == "sim_am" else ())),
    )


def _table(data: Data, metric: str, marks: dict[int, Marks]) -> Table:
    variants = list(dict.fromkeys(v for subject in data.subjects for v in subject.variants))
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in [*subject.tasks, "all tasks"]:
            best = marks[id(subject)].of(task, metric) if task != "all tasks" else {}
            for learner in subject.gradient_learners:
                found = {v: subject.get(task, learner, metric, v, ("in-context",)) for v in variants}
                if any(found.values()):
                    cells = [Number.of(found[v], best.get(learner, "") if v == "trained" else "") for v in variants]
                    rows.append([subject.name, task, learner, *cells])
    return Table.build(["model", "task", "learner", *variants], rows)
