"""What the learners get right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dualscope.report.charts.chart import Chart, Item, Section
from dualscope.report.charts.curves import curves, line_panel, line_rows, line_span
from dualscope.report.charts.dots import panels_of, published_of, series_of
from dualscope.report.data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
    items: list[Item] = [_accuracies(data), _gaps(data)]
    exits = _early_exit(data)
    items += [exits] if exits is not None else []
    about = "Before asking how alike two ways to learn are: do they learn at all?"
    unmeasured = "" if exits is not None else "early-exit accuracy (`accuracy_at_layer`)"
    return Section("accuracy", "Accuracy", tuple(items), about, unmeasured=unmeasured)


def shown(subject: Subject) -> list[str]:
    compared = set(subject.gradient_learners)
    extra = [name for name in subject.learners if subject.role(name) == "hypothesis" and name not in compared]
    return ["zero-shot", "in-context", *subject.gradient_learners, *extra]


def _accuracies(data: Data) -> Chart:
    groups = [
        series_of(subject, "accuracy", shown(subject)) + published_of(subject, "accuracy", shown(subject))
        for subject in data.subjects
    ]
    panels = panels_of(groups, data.subjects, "accuracy", named=True)
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in subject.tasks:
            for learner in subject.learners:
                values = [subject.get(task, learner, "accuracy", v) for v in subject.variants]
                if any(values):
                    cells = {v: Number.of(row) for v, row in zip(subject.variants, values, strict=True)}
                    every = [cells.get(v, Number(None)) for v in _variants(data.subjects)]
                    rows.append([subject.name, task, learner, *every])
    table = Table.build(["model", "task", "learner", *_variants(data.subjects)], rows)
    return Chart(
        "accuracies",
        "Accuracy by task",
        "The share of queries answered correctly on the trained model, with 95 % intervals. The table has every "
        "variant.",
        "Where a learner is not to the right of zero-shot it learned nothing, and its likeness means nothing.",
        panels,
        table,
        ("accuracy",),
        named=True,
    )


def _variants(subjects: Sequence[Subject]) -> list[str]:
    return list(dict.fromkeys(variant for subject in subjects for variant in subject.variants))


def _gaps(data: Data) -> Table:
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in subject.tasks:
            base = subject.get(task, "zero-shot", "accuracy")
            icl = subject.get(task, "in-context", "accuracy")
            if base is None or icl is None:
                continue
            icl_gain = subject.get(task, "in-context", "icl_learned")
            for learner in subject.gradient_learners:
                own = subject.get(task, learner, "accuracy")
                if own is not None:
                    gap = icl["value"] - own["value"]
                    relative = gap / base["value"] if base["value"] else math.nan
                    gain = subject.get(task, learner, "gd_learned")
                    row: list[Entry] = [subject.name, task, learner, Number.of(icl_gain), Number.of(gain)]
                    rows.append([*row, Number(gap), Number(relative)])
    columns = ["model", "task", "learner", "ICL − zero-shot", "learner − zero-shot", "ICL − learner"]
    return Table.build(
        [*columns, "(ICL − learner) / zero-shot"],
        rows,
        title="What was gained, and the gap between ICL and each gradient learner relative to zero-shot",
        folded=True,
    )


def _early_exit(data: Data) -> Chart | None:
    made = []
    for subject in data.subjects:
        learners, lines = shown(subject), data.lines(subject)
        made += [
            (subject, task, curves(lines, task, "accuracy_at_layer", learners, ["trained"], subject.palette, (None,)))
            for task in subject.tasks
        ]
    made = [entry for entry in made if entry[2]]
    if not made:
        return None
    span = line_span(traces for _, _, traces in made)
    panels = tuple(line_panel(traces, task, _title(data, subject, task), span) for subject, task, traces in made)
    rows = [
        row
        for s in data.subjects
        for row in line_rows(data.lines(s), "accuracy_at_layer", shown(s), s.variants, s.tasks, s.name)
    ]
    return Chart(
        "early-exit",
        "Accuracy read off each layer",
        "Every layer's residual at the read position, put through the final norm and the unembedding, as if "
        "the model ended there.",
        "Where a line begins to rise, the answer begins to be readable. Two learners that learn alike "
        "should rise in the same layers.",
        panels,
        Table.build(["model", "task", "learner", "variant", "layer", "accuracy"], rows),
        ("accuracy_at_layer",),
        folded=True,
    )


def _title(data: Data, subject: Subject, task: str) -> str:
    return f"{task} · {subject.name}" if data.side_by_side else task
