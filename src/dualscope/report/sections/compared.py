"""Models and runs beside one another: layers overlaid, and curves against size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dualscope.core.companions import PLAIN
from dualscope.core.learning import IN_CONTEXT, ZERO_SHOT
from dualscope.findings.answer import PRIMARY
from dualscope.report.charts.chart import (
    Chart,
    Item,
    Note,
    Panel,
    Section,
    plain,
    short,
    whiskers,
    with_interval,
)
from dualscope.report.charts.curves import line_span, pick
from dualscope.report.charts.layers import Line
from dualscope.report.charts.palette import MARKS
from dualscope.report.data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table

SHADES = ("@blue", "@vermilion", "@green", "@purple", "@orange", "@navy", "@sky", "@olive", "@grey")


def section(data: Data) -> Section | None:
    if not data.side_by_side:
        return None
    charts = [_layers(data), _sizes(data)]
    items: list[Item] = [chart for chart in charts if chart is not None]
    if charts[1] is None:
        items.append(
            Note("Curves against size need models of different sizes; these have the same, or do not say.")
        )
    about = "The same learner on every model; the matrix of all answers stands at the top."
    return Section("compared", "Models side by side", tuple(items), about)


def _learner(subject: Subject) -> str | None:
    """Plain gradient descent, or what stands first."""
    found = subject.gradient_learners
    return PLAIN if PLAIN in found else next(iter(found), None)


def _style(index: int) -> tuple[str, str]:
    return SHADES[index % len(SHADES)], MARKS[(index + index // len(SHADES)) % len(MARKS)]


def _layers(data: Data) -> Chart | None:
    """Likeness against depth, 0 the first layer and 1 the last, so that models of any depth lie over one another."""
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    drawn: dict[str, list[dict[str, Any]]] = {}
    for index, subject in enumerate(data.subjects):
        learner = _learner(subject)
        for task in subject.tasks if learner else ():
            line = pick(data.lines(subject), task, "trained", str(learner), PRIMARY, (IN_CONTEXT.label,))
            if line is None:
                continue
            drawn.setdefault(task, []).append(_deep(f"{subject.name}: {learner}", line, *_style(index)))
            for layer, value, low, high in zip(line.layers, line.values, line.lows, line.highs, strict=True):
                entries: list[Entry] = [
                    subject.name,
                    task,
                    str(learner),
                    str(layer),
                    Number(value, low, high),
                ]
                rows.append(entries)
    if not drawn:
        return None
    span = line_span(drawn.values())
    for task, traces in drawn.items():
        layout: dict[str, Any] = {
            "xaxis": {
                "title": {"text": "depth (first layer to last)"},
                "zeroline": False,
                "range": [-0.03, 1.03],
            },
            "yaxis": {"zeroline": True, **({"range": list(span)} if span else {})},
        }
        panels.append(Panel(traces, layout, task, 300, task=task))
    return Chart(
        "compared-layers",
        "Likeness by depth, every model",
        "How alike in-context learning's and the learner's changes of the attention outputs are, layer by layer, "
        "one line a model, with 95 % intervals.",
        "Lines that rise and fall at the same depth say that the likeness has the same place in every model. Whether "
        "it is more than the controls give is for each model's own panel to say.",
        tuple(panels),
        Table.build(["model", "task", "learner", "layer", PRIMARY], rows),
        (PRIMARY,),
    )


def _deep(name: str, line: Line, colour: str, symbol: str) -> dict[str, Any]:
    last = max(max(line.layers), 1)
    values = [short(v) for v in line.values]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": [round(layer / last, 4) for layer in line.layers],
        "y": values,
        "error_y": {**whiskers(values, line.lows, line.highs), "color": colour, "thickness": 1},
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 6},
        "customdata": with_interval(line.values, line.lows, line.highs),
        "hovertemplate": "depth %{x:.2f}: %{customdata}<extra>" + plain(name) + "</extra>",
    }


def _sizes(data: Data) -> Chart | None:
    """Numbers against the number of weights, one line a task."""
    sized = [(size, subject) for subject in data.subjects if (size := _parameters(subject)) is not None]
    if len({size for size, _ in sized}) < 2:
        return None
    sized.sort(key=lambda pair: pair[0])
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    for what, metric, label in (
        (f"{PRIMARY} of the learner", PRIMARY, None),
        ("accuracy in context", "accuracy", IN_CONTEXT.label),
        ("accuracy without", "accuracy", ZERO_SHOT.label),
    ):
        traces = []
        for index, task in enumerate(data.tasks):
            points = [
                (size, subject, row)
                for size, subject in sized
                if (who := label or _learner(subject)) and (row := subject.get(task, who, metric)) is not None
            ]
            if points:
                traces.append(_against_size(task, points, *_style(index)))
                rows += [[s.name, task, what, f"{size:,}", Number.of(row)] for size, s, row in points]
        if traces:
            axis = {"title": {"text": "weights"}, "type": "log", "zeroline": False}
            panels.append(Panel(traces, {"xaxis": axis, "yaxis": {"zeroline": True}}, what, 300))
    return Chart(
        "compared-sizes",
        "Against size",
        "The trained models by their number of weights, one line a task, with 95 % intervals over seeds and queries.",
        "A claim about large models needs a line that goes somewhere as models grow, and controls that do "
        "not go there.",
        tuple(panels),
        Table.build(["model", "task", "what", "weights", "value"], rows),
        (PRIMARY, "accuracy"),
    )


def _against_size(
    task: str, points: Sequence[tuple[int, Subject, Any]], colour: str, symbol: str
) -> dict[str, Any]:
    values = [short(row["value"]) for *_, row in points]
    ends = [[row[end] for *_, row in points] for end in ("low", "high")]
    said = [
        plain(f"{subject.name}: {text}")
        for (_, subject, _), text in zip(points, with_interval(values, *ends), strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(task),
        "x": [size for size, *_ in points],
        "y": values,
        "ids": [plain(task)] * len(points),
        "error_y": {**whiskers(values, *ends), "color": colour, "thickness": 1},
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 6},
        "customdata": said,
        "hovertemplate": "%{customdata}<extra>" + plain(task) + "</extra>",
    }


def _parameters(subject: Subject) -> int | None:
    """How many weights the model has, as its cells noted."""
    for cell in subject.cells[:1]:
        found = subject.source.run.notes(cell.id).get("parameters", "")
        return int(found) if found.isdecimal() else None
    return None
