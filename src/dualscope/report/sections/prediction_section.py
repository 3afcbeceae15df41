"""Do both learners change the same predictions?"""

from __future__ import annotations

from dualscope.findings.answer import metric_title
from dualscope.report.charts.chart import Chart, Item, Note, Section, Tabs, plain, short
from dualscope.report.charts.chart_makers import ChartPoint, bars, dots
from dualscope.report.charts.curves import Look
from dualscope.report.charts.dots import Series, published_of, series_of
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table

METRICS = {
    "rec2ftp": "Recall to fine-tuning's predictions (rec2ftp): of the queries that a gradient learner newly "
    "gets right, the share that ICL gets right too.",
    "jaccard": "Of the queries whose prediction either learner changes, the share that both change.",
    "jaccard_correct": "The same of the changes to the right label.",
    "jaccard_incorrect": "The same of the changes to a wrong label.",
    "jaccard_same": "Of the queries that either changes, the share that both change to the same label (the "
    "published code).",
    "jaccard_corrected": "The overlap above what two independent sets of changes of these sizes would "
    "share: 0 is chance.",
    "label_change_correlation": "How the log-probabilities of the labels move, query by query: the "
    "correlation of ICL's and the learner's changes.",
}
PARTS = {
    "both, right": (("partition_same_right",), Look("@green")),
    "both, wrong": (("partition_same_wrong",), Look("@green", hatch="/")),
    "both, to different labels": (
        ("partition_different_icl_right", "partition_different_gd_right", "partition_different_wrong"),
        Look("@grey"),
    ),
    "only ICL, right": (("partition_only_icl_right",), Look("@blue")),
    "only ICL, wrong": (("partition_only_icl_wrong",), Look("@blue", hatch="/")),
    "only GD, right": (("partition_only_gd_right",), Look("@orange")),
    "only GD, wrong": (("partition_only_gd_wrong",), Look("@orange", hatch="/")),
}


def section(data: Data) -> Section:
    made = [(name, chart) for name in METRICS if (chart := _chart(data, name)) is not None]
    items: list[Item] = [Tabs("prediction-tabs", "Agreement of predictions", tuple(made))] if made else []
    measured = {row["metric"] for subject in data.subjects for row in subject.rows}
    empty = [name for name in METRICS if name in measured and name not in dict(made)]
    if empty:
        items.append(Note(f"No value: {', '.join(empty)}. The sets that they compare are empty on every task."))
    partition = _partition(data)
    if partition is not None:
        items.append(partition)
    about = "If ICL were gradient descent, both would change the same predictions, and to the same labels."
    return Section("prediction", "Agreement of predictions", tuple(items), about, folded=True)


def _series(subject: Subject, metric: str) -> list[Series]:
    found = series_of(subject, metric, subject.gradient_learners, ["trained"], ("in-context",))
    return [*found, *published_of(subject, metric, subject.gradient_learners)] if found else []


def _chart(data: Data, metric: str) -> Chart | None:
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in [*subject.tasks, "all tasks"]:
            for learner in [n for n in subject.learners if n not in ("zero-shot", "in-context")]:
                row = subject.get(task, learner, metric, references=("in-context",))
                if row is not None:
                    rows.append([subject.name, task, learner, Number.of(row)])
    shell = Chart(
        f"prediction-{metric}",
        f"{metric_title(metric)} by task",
        f"{METRICS[metric]} Intervals: 95 %. A task where the set is empty has no value.",
        "1 is full agreement. A learner that changes almost everything, or almost nothing, agrees by "
        "accident: look at the partition below and at jaccard_corrected.",
        metrics=(metric,),
    )
    return dots(
        shell, data, metric, lambda subject: _series(subject, metric), ["model", "task", "learner", metric], rows
    )


def _partition(data: Data) -> Chart | None:
    points: list[ChartPoint] = []
    rows: list[list[Entry]] = []
    changed: list[float] = []
    for subject in data.subjects:
        for (learner, task), found in _counts(subject).items():
            total = sum(found.values()) or 1.0
            changed.append(1 - found["neither"] / total)
            rows.append([subject.name, task, learner, *(Number(found[part], digits=1) for part in (*PARTS, "neither"))])
            points += [
                ChartPoint(data.title(subject, learner), part, look, task, Number(found[part] / total), (), task)
                for part, (_, look) in PARTS.items()
            ]
    reach = min(1.0, 1.08 * max(changed, default=1.0)) or 1.0
    tasks = [plain(task) for task in dict.fromkeys(point.x for point in points)]
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": {"title": {"text": "share of queries"}, "tickformat": ".0%", "range": [0, short(reach)]},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": tasks[::-1]},
    }
    shell = Chart(
        "partition",
        "Who changed what",
        "The queries whose prediction differs from zero-shot's, by who changed them and whether the new "
        "label is right (plain) or wrong (hatched); as shares of all queries, mean over seeds. The table "
        "has the counts.",
        "Green is common ground. Blue and orange are what one learner does and the other does not.",
        table=Table.build(["model", "task", "learner", *PARTS, "neither"], rows),
        metrics=("partition_same_right", "partition_only_icl_right", "partition_only_gd_right"),
    )
    return bars(shell, points, (), layout, lambda tasks: 80 + 40 * tasks, across=True, hover="%{y}: %{x:.1%}")


def _counts(subject: Subject) -> dict[tuple[str, str], dict[str, float]]:
    """By learner and task: queries in each part, mean over seeds."""
    found = {}
    for learner in subject.gradient_learners:
        for task in subject.tasks:

            def value(metric: str, learner: str = learner, task: str = task) -> float | None:
                row = subject.get(task, learner, metric, references=("in-context",))
                return None if row is None else row["value"]

            neither = value("partition_neither")
            parts = {name: [value(m) for m in metrics] for name, (metrics, _) in PARTS.items()}
            if neither is not None and all(v is not None for values in parts.values() for v in values):
                sums = {name: sum(v or 0.0 for v in values) for name, values in parts.items()}
                found[learner, task] = {**sums, "neither": neither}
    return found
