"""Models and runs beside one another: layers overlaid, and curves against training and size."""

from __future__ import annotations

from typing import Any

from dualscope.core.spec import IN_CONTEXT
from dualscope.findings.answer import PRIMARY
from dualscope.report.charts.by_layer import Line
from dualscope.report.charts.chart import Chart, Item, Note, Panel, Section, plain, short, whiskers, with_interval
from dualscope.report.charts.curves import line_span, pick
from dualscope.report.data import Data
from dualscope.report.sections.growth_section import against_size, against_step, learner_of, style
from dualscope.report.table import Entry, Number, Table


def section(data: Data) -> Section | None:
    if not data.side_by_side:
        return None
    charts = [_layers(data), step := against_step(data), size := against_size(data)]
    items: list[Item] = [chart for chart in charts if chart is not None]
    if size is None and step is None:
        items.append(Note("Curves against size need models of different sizes; these have the same, or do not say."))
    about = "The same learner on every model; the matrix of all answers stands at the top."
    return Section("compared", "Models side by side", tuple(items), about)


def _layers(data: Data) -> Chart | None:
    """Likeness against depth, 0 the first layer and 1 the last, so that models of any depth lie over one another."""
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    drawn: dict[str, list[dict[str, Any]]] = {}
    for index, subject in enumerate(data.subjects):
        learner = learner_of(subject)
        for task in subject.tasks if learner else ():
            line = pick(data.lines(subject), task, "trained", str(learner), PRIMARY, (IN_CONTEXT.label,))
            if line is None:
                continue
            drawn.setdefault(task, []).append(_deep(f"{subject.name}: {learner}", line, *style(index)))
            for layer, value, low, high in zip(line.layers, line.values, line.lows, line.highs, strict=True):
                entries: list[Entry] = [subject.name, task, str(learner), str(layer), Number(value, low, high)]
                rows.append(entries)
    if not drawn:
        return None
    span = line_span(drawn.values())
    for task, traces in drawn.items():
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": "depth (first layer to last)"}, "zeroline": False, "range": [-0.03, 1.03]},
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
