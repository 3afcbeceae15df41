"""Likeness layer by layer."""

from __future__ import annotations

from dualscope.report.charts.chart import Chart, Item, Note, Section, Tabs
from dualscope.report.charts.curves import curves, line_panel, line_rows, line_span
from dualscope.report.data import Data
from dualscope.report.table import Table

METRICS = {
    "sim_aou": "the changes of the attention outputs",
    "sim_aou_centered": "the changes of the attention outputs, each less its mean over queries",
    "sim_aou_direct": "what each layer's own update does to the attention outputs, without drift from below",
    "sim_aou_norm": "the changes of the attention outputs scaled to unit norm (the older metric)",
    "sim_am": "the attention maps",
    "sim_am_delta": "the changes of the attention maps",
}


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
    made = [(name, chart) for name in METRICS if (chart := _chart(data, name)) is not None]
    items: list[Item] = [Tabs("layer-tabs", "Likeness by layer of", tuple(made))] if made else []
    if not made:
        items.append(Note("No similarity per layer is in these runs.", "missing"))
    if not any("untrained" in subject.variants for subject in data.subjects):
        items.append(Note("The untrained baseline is missing: no untrained variant was run.", "missing"))
    about = (
        "The claim is about layers: each layer's attention should do what a step of gradient descent does."
    )
    return Section("layers", "Likeness by layer", tuple(items), about)


def _chart(data: Data, metric: str) -> Chart | None:
    from dualscope.report.published import layer_traces

    made = []
    for subject in data.subjects:
        lines = data.lines(subject)
        for task in subject.tasks:
            traces = curves(
                lines,
                task,
                metric,
                subject.gradient_learners,
                subject.variants,
                subject.colour,
                ("in-context",),
            )
            if traces:
                traces += layer_traces(task, metric, subject.gradient_learners, traces)
                made.append((subject, task, traces))
    if not made:
        return None
    span = line_span(traces for _, _, traces in made)
    panels = tuple(
        line_panel(traces, task, f"{task} · {s.name}" if data.side_by_side else task, span)
        for s, task, traces in made
    )
    rows = [
        row
        for s in data.subjects
        for row in line_rows(data.lines(s), metric, s.gradient_learners, s.variants, s.tasks, s.name)
    ]
    return Chart(
        f"layers-{metric}",
        f"{metric} by layer",
        f"The cosine between {METRICS[metric]}: in-context learning against each gradient learner, mean over "
        "queries and seeds. Bars: 95 %, from the spread over seeds and each seed's interval over queries. "
        "Dotted: the same on untrained weights; their intervals are in the table.",
        "1 is the same direction, 0 is none in common. A layer counts for the claim where the solid line is "
        "clear of the dotted one of its colour.",
        panels,
        Table.build(["model", "task", "learner", "variant", "layer", metric], rows),
        (metric,),
    )
