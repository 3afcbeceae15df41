"""Models of a family: likeness, explained share and accuracy against training step and against size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dualscope.core.registry import MARKS
from dualscope.core.rows import SummaryRow
from dualscope.core.spec import IN_CONTEXT, PLAIN, ZERO_SHOT
from dualscope.findings.answer import PRIMARY
from dualscope.report.charts.chart import Chart, Panel, plain, short, whiskers, with_interval
from dualscope.report.data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table

SHADES = ("@blue", "@vermilion", "@green", "@purple", "@orange", "@navy", "@sky", "@olive", "@grey")
NUMBERS = (
    (f"{PRIMARY} of the learner", PRIMARY, None),
    ("explained share of in-context learning", "explained", None),
    ("accuracy in context", "accuracy", IN_CONTEXT.label),
    ("accuracy of the learner", "accuracy", None),
    ("accuracy without", "accuracy", ZERO_SHOT.label),
)
Point = tuple[int, Subject, SummaryRow]


@dataclass(frozen=True)
class Grown:
    """What a subject's cells noted of its model."""

    subject: Subject
    family: str
    step: int | None
    parameters: int | None

    @classmethod
    def of(cls, subject: Subject) -> Grown:
        notes = subject.source.run.notes(next(iter(subject.cells))) if subject.cells else {}
        step, parameters = (
            int(text) if (text := notes.get(name, "")).isdecimal() else None for name in ("step", "parameters")
        )
        return cls(subject, notes.get("family", subject.model), step, parameters)


def learner_of(subject: Subject) -> str | None:
    """Plain gradient descent, or what stands first."""
    found = subject.gradient_learners
    return PLAIN if PLAIN in found else next(iter(found), None)


def style(index: int) -> tuple[str, str]:
    return SHADES[index % len(SHADES)], MARKS[(index + index // len(SHADES)) % len(MARKS)]


def against_step(data: Data) -> Chart | None:
    """A line for every training and task, where a training has several checkpoints."""
    families: dict[str, list[Grown]] = {}
    for subject in data.subjects:
        if (model := Grown.of(subject)).step is not None:
            families.setdefault(model.family, []).append(model)
    families = {name: own for name, own in families.items() if len({model.step for model in own}) > 1}
    if not families:
        return None
    lines = {
        (f"{name}, {task}" if len(families) > 1 else task): (task, own)
        for name, own in families.items()
        for task in data.tasks
    }
    steps = sorted({model.step for own in families.values() for model in own if model.step is not None})
    return _chart(
        "compared-steps",
        "Against training step",
        "The checkpoints of a training by the step at which they were saved, one line a task, with 95 % intervals over "
        "seeds and queries.",
        "Where in-context accuracy leaves zero-shot's behind, in-context learning appears. If it were descent, "
        "its likeness and its explained share would appear with it, and neither before. A likeness that comes before "
        "anything is learned in context is of something else.",
        "training step",
        lines,
        lambda model: model.step,
        _log_with_zero(steps),
    )


def against_size(data: Data) -> Chart | None:
    """A line a task; of a training with several checkpoints the last."""
    last: dict[tuple[str, int], Grown] = {}
    for model in map(Grown.of, data.subjects):
        if model.parameters is not None:
            key = (model.family, model.parameters) if model.step is not None else (model.subject.name, 0)
            if key not in last or (model.step or 0) > (last[key].step or 0):
                last[key] = model
    if len({model.parameters for model in last.values()}) < 2:
        return None
    return _chart(
        "compared-sizes",
        "Against size",
        "The trained models by their number of weights (of several checkpoints the last), one line a task, with 95 % "
        "intervals over seeds and queries.",
        "A claim about large models needs a line that goes somewhere as models grow, and controls that do "
        "not go there.",
        "weights",
        {task: (task, list(last.values())) for task in data.tasks},
        lambda model: model.parameters,
        {"type": "log"},
    )


def _log_with_zero(steps: Sequence[int]) -> dict[str, Any]:
    """A logarithmic axis on which step 0 has a place: half the first step."""
    shown = [max(step, 0.5 * min((s for s in steps if s), default=1)) for step in steps]
    few = range(0, len(steps), -(-len(steps) // 8))
    texts = [f"{steps[i]:,}" for i in few]
    return {"type": "log", "tickvals": [shown[i] for i in few], "ticktext": texts, "zero": shown[0]}


def _chart(
    id_: str,
    title: str,
    about: str,
    reads: str,
    axis: str,
    lines: dict[str, tuple[str, list[Grown]]],
    place: Callable[[Grown], int | None],
    scale: dict[str, Any],
) -> Chart | None:
    zero = scale.pop("zero", None)
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    for what, metric, label in NUMBERS:
        traces = []
        for index, (name, (task, models)) in enumerate(lines.items()):
            points = sorted(_points(models, task, metric, label, place), key=lambda point: point[0])
            if points:
                traces.append(_line(name, task, points, zero, *style(index)))
                rows += [[s.name, task, what, f"{at:,}", Number.of(row)] for at, s, row in points]
        if traces:
            x = {"title": {"text": axis}, "zeroline": False, **scale}
            panels.append(Panel(traces, {"xaxis": x, "yaxis": {"zeroline": True}}, what, 300))
    if not panels:
        return None
    table = Table.build(["model", "task", "what", axis, "value"], rows)
    return Chart(id_, title, about, reads, tuple(panels), table, (PRIMARY, "explained", "accuracy"))


def _points(
    models: Sequence[Grown], task: str, metric: str, label: str | None, place: Callable[[Grown], int | None]
) -> list[Point]:
    found: list[Point] = []
    for model in models:
        who, at = label or learner_of(model.subject), place(model)
        row = model.subject.get(task, who, metric) if who else None
        if at is not None and row is not None:
            found.append((at, model.subject, row))
    return found


def _line(
    name: str, task: str, points: Sequence[Point], zero: float | None, colour: str, symbol: str
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
        "name": plain(name),
        "x": [at or zero for at, *_ in points],
        "y": values,
        "ids": [plain(task)] * len(points),
        "error_y": {**whiskers(values, *ends), "color": colour, "thickness": 1},
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 6},
        "customdata": said,
        "hovertemplate": "%{customdata}<extra>" + plain(name) + "</extra>",
    }
