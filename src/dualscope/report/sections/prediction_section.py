"""Do both learners change the same predictions?"""

from __future__ import annotations

from typing import Any

from dualscope.findings.answer import metric_title
from dualscope.report.charts.chart import Chart, Item, Note, Panel, Section, Tabs, plain, short
from dualscope.report.charts.dots import Series, panels_of, published_of, series_of
from dualscope.report.data import Data
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
    "both, right": (("partition_same_right",), "@green", ""),
    "both, wrong": (("partition_same_wrong",), "@green", "/"),
    "both, to different labels": (
        ("partition_different_icl_right", "partition_different_gd_right", "partition_different_wrong"),
        "@grey",
        "",
    ),
    "only ICL, right": (("partition_only_icl_right",), "@blue", ""),
    "only ICL, wrong": (("partition_only_icl_wrong",), "@blue", "/"),
    "only GD, right": (("partition_only_gd_right",), "@orange", ""),
    "only GD, wrong": (("partition_only_gd_wrong",), "@orange", "/"),
}


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
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
    groups = [_series(subject, metric) for subject in data.subjects]
    if not any(groups):
        return None
    panels = panels_of(groups, data.subjects, metric)
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in [*subject.tasks, "all tasks"]:
            for learner in [n for n in subject.learners if n not in ("zero-shot", "in-context")]:
                row = subject.get(task, learner, metric, references=("in-context",))
                if row is not None:
                    rows.append([subject.name, task, learner, Number.of(row)])
    return Chart(
        f"prediction-{metric}",
        f"{metric_title(metric)} by task",
        f"{METRICS[metric]} Intervals: 95 %. A task where the set is empty has no value.",
        "1 is full agreement. A learner that changes almost everything, or almost nothing, agrees by "
        "accident: look at the partition below and at jaccard_corrected.",
        panels,
        Table.build(["model", "task", "learner", metric], rows),
        (metric,),
    )


def _partition(data: Data) -> Chart | None:
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    every = [_counts(subject) for subject in data.subjects]
    changed = [1 - c["neither"] / (sum(c.values()) or 1.0) for counts in every for c in counts.values()]
    reach = min(1.0, 1.08 * max(changed, default=1.0)) or 1.0
    for subject, counts in zip(data.subjects, every, strict=True):
        for learner in dict.fromkeys(learner for learner, _ in counts):
            own = {task: found for (name, task), found in counts.items() if name == learner}
            title = f"{learner} · {subject.name}" if data.side_by_side else learner
            panels.append(_bars(own, title, reach))
            for task, found in own.items():
                numbers = [Number(found[name], digits=1) for name in (*PARTS, "neither")]
                rows.append([subject.name, task, learner, *numbers])
    if not panels:
        return None
    return Chart(
        "partition",
        "Who changed what",
        "The queries whose prediction differs from zero-shot's, by who changed them and whether the new "
        "label is right (plain) or wrong (hatched); as shares of all queries, mean over seeds. The table "
        "has the counts.",
        "Green is common ground. Blue and orange are what one learner does and the other does not.",
        tuple(panels),
        Table.build(["model", "task", "learner", *PARTS, "neither"], rows),
        ("partition_same_right", "partition_only_icl_right", "partition_only_gd_right"),
    )


def _counts(subject: Subject) -> dict[tuple[str, str], dict[str, float]]:
    """By learner and task: queries in each part, mean over seeds."""
    found = {}
    for learner in subject.gradient_learners:
        for task in subject.tasks:

            def value(metric: str, learner: str = learner, task: str = task) -> float | None:
                row = subject.get(task, learner, metric, references=("in-context",))
                return None if row is None else row["value"]

            neither = value("partition_neither")
            parts = {name: [value(m) for m in metrics] for name, (metrics, _, _) in PARTS.items()}
            if neither is not None and all(v is not None for values in parts.values() for v in values):
                sums = {name: sum(v or 0.0 for v in values) for name, values in parts.items()}
                found[learner, task] = {**sums, "neither": neither}
    return found


def _bars(counts: dict[str, dict[str, float]], title: str, reach: float) -> Panel:
    tasks = list(counts)
    totals = {task: sum(counts[task].values()) or 1.0 for task in tasks}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [plain(task) for task in tasks],
            "ids": [plain(task) for task in tasks],
            "x": [short(counts[task][name] / totals[task]) for task in tasks],
            "marker": {
                "color": colour,
                "pattern": {"shape": shape, "bgcolor": colour, "fgcolor": "@paper", "solidity": 0.35},
            },
            "hovertemplate": "%{y}: %{x:.1%}<extra>" + name + "</extra>",
        }
        for name, (_, colour, shape) in PARTS.items()
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": {"title": {"text": "share of queries"}, "tickformat": ".0%", "range": [0, short(reach)]},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": [plain(t) for t in reversed(tasks)]},
    }
    return Panel(data, layout, title, 80 + 40 * len(tasks), by_task=True)
