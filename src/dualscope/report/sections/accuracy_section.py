"""What the learners get right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dualscope.report.charts.chart import Chart, Section
from dualscope.report.charts.chart_makers import by_layer, dots
from dualscope.report.charts.curves import curves, line_rows
from dualscope.report.charts.dots import Series, published_of, series_of
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table


def section(data: Data) -> Section:
    exits = _early_exit(data)
    items = [item for item in (_accuracies(data), _gaps(data), exits) if item is not None]
    about = "Before asking how alike two ways to learn are: do they learn at all?"
    unmeasured = "" if exits is not None else "early-exit accuracy (`accuracy_at_layer`)"
    return Section("accuracy", "Accuracy", tuple(items), about, unmeasured=unmeasured)


def shown(subject: Subject) -> list[str]:
    compared = set(subject.gradient_learners)
    extra = [name for name in subject.learners if subject.role(name) == "hypothesis" and name not in compared]
    return ["zero-shot", "in-context", *subject.gradient_learners, *extra]


def _accuracies(data: Data) -> Chart | None:
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in subject.tasks:
            for learner in subject.learners:
                values = [subject.get(task, learner, "accuracy", v) for v in subject.variants]
                if any(values):
                    cells = {v: Number.of(row) for v, row in zip(subject.variants, values, strict=True)}
                    every = [cells.get(v, Number(None)) for v in _variants(data.subjects)]
                    rows.append([subject.name, task, learner, *every])
    shell = Chart(
        "accuracies",
        "Accuracy by task",
        "The share of queries answered correctly on the trained model, with 95 % intervals. The table has every "
        "variant.",
        "Where a learner is not to the right of zero-shot it learned nothing, and its likeness means nothing.",
        metrics=("accuracy",),
        named=True,
    )

    def series(subject: Subject) -> list[Series]:
        return [of for make in (series_of, published_of) for of in make(subject, "accuracy", shown(subject))]

    columns = ["model", "task", "learner", *_variants(data.subjects)]
    return dots(shell, data, "accuracy", series, columns, rows, named=True)


def _variants(subjects: Sequence[Subject]) -> list[str]:
    return list(dict.fromkeys(variant for subject in subjects for variant in subject.variants))


def _gaps(data: Data) -> Table:
    rows: list[list[Entry]] = []
    for subject, task in ((s, task) for s in data.subjects for task in s.tasks):
        base, icl = (subject.get(task, learner, "accuracy") for learner in ("zero-shot", "in-context"))
        icl_gain = Number.of(subject.get(task, "in-context", "icl_learned"))
        for learner in subject.gradient_learners:
            own = subject.get(task, learner, "accuracy")
            if base and icl and own:
                gap = icl["value"] - own["value"]
                relative = Number(gap / base["value"] if base["value"] else None)
                gain = Number.of(subject.get(task, learner, "gd_learned"))
                rows.append([subject.name, task, learner, icl_gain, gain, Number(gap), relative])
    columns = ["model", "task", "learner", "ICL − zero-shot", "learner − zero-shot", "ICL − learner"]
    return Table.build(
        [*columns, "(ICL − learner) / zero-shot"],
        rows,
        title="What each gradient learner gained over zero-shot, beside in-context learning",
        folded=True,
    )


def _early_exit(data: Data) -> Chart | None:
    metric = "accuracy_at_layer"
    shell = Chart(
        "early-exit",
        "Accuracy read off each layer",
        "Every layer's residual at the read position, put through the final norm and the unembedding, as if "
        "the model ended there.",
        "Where a line begins to rise, the answer begins to be readable. Two learners that learn alike "
        "should rise in the same layers.",
        metrics=(metric,),
        folded=True,
    )

    def drawn(subject: Subject, task: str) -> list[dict[str, Any]]:
        return curves(data.lines(subject), task, metric, shown(subject), ["trained"], subject.palette, (None,))

    rows = (
        row for s in data.subjects for row in line_rows(data.lines(s), metric, shown(s), s.variants, s.tasks, s.name)
    )
    return by_layer(shell, data, drawn, ["model", "task", "learner", "variant", "layer", "accuracy"], rows)
