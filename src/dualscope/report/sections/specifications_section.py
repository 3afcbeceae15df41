"""Does the likeness stand above its controls however it is computed? Where `sim_aou_specified` was asked for."""

from __future__ import annotations

from typing import Any

from dualscope.findings.specification_curve import METRIC, SpecificationCurve, curves
from dualscope.report.charts.chart import Chart, Item, Note, Panel, Section, short
from dualscope.report.charts.dots import marks
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table


def section(data: Data) -> Section | None:
    found = [(subject, curve) for subject in data.subjects for curve in curves(subject.rows)]
    if not found:
        return None
    rows: list[list[Entry]] = []
    for subject, curve in found:
        for point in curve.points:
            one, strongest = point.specification, point.strongest
            control = "" if strongest is None else strongest[0]
            rows.append(
                [
                    *(subject.name, curve.task, curve.learner),
                    *(one.dimensions, one.weights, one.centring, one.aggregate),
                    Number.of(point.own),
                    control,
                    Number.of(None if strongest is None else strongest[1]),
                ]
            )
    chart = Chart(
        "specification-curve",
        "Likeness under every specification",
        "Every dot is one way to compute the likeness of attention outputs: which dimensions, how layers weigh, "
        "whether the mean over queries is taken out, how queries are put together. From the least to the most, with "
        "what the controls have by the same way.",
        "A likeness that is above its controls only by some ways is a matter of the way.",
        tuple(
            _panel(subject, curve, data.title(subject, f"{curve.task}, {curve.learner}")) for subject, curve in found
        ),
        Table.build(
            [
                *("model", "task", "learner", "dimensions", "layers weigh", "centred", "aggregate", METRIC),
                *("strongest control", "it has"),
            ],
            rows,
        ),
        (METRIC,),
        wide=True,
    )
    notes: list[Item] = [
        Note(f"{subject.name}. {curve.words()}" if data.side_by_side else curve.words()) for subject, curve in found
    ]
    about = "The papers' choices of dimensions, layers, centring and aggregate are one of many reasonable ones."
    return Section("specifications", "However it is computed", (*notes, chart), about)


def _panel(subject: Subject, curve: SpecificationCurve, title: str) -> Panel:
    names = dict.fromkeys(name for point in curve.points for name in point.controls)

    said = "%{text}: %{y:.3f}"

    def trace(name: str, y: list[float | None], shade: str, size: int) -> dict[str, Any]:
        text = [point.specification.name for point in curve.points]
        return {**marks(name, list(range(1, len(y) + 1)), y, "circle", shade, size, 0, said), "text": text}

    traces = [trace(curve.learner, [short(p.own["value"]) for p in curve.points], subject.colour(curve.learner), 7)]
    for name in names:
        values = [short(p.controls[name]["value"]) if name in p.controls else None for p in curve.points]
        traces.append(trace(name, values, "@grey", 4))
    layout = {
        "xaxis": {"title": {"text": "specification, by the learner's value"}},
        "yaxis": {"title": {"text": "likeness"}, "zeroline": True},
    }
    return Panel(traces, layout, title, 300, task=curve.task)
