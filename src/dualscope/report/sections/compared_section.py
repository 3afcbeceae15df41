"""Models and runs beside one another: layers overlaid, and curves against training and size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dualscope.core.registry import MARKS
from dualscope.core.rows import SummaryRow
from dualscope.core.spec import IN_CONTEXT, PLAIN, ZERO_SHOT
from dualscope.findings.answer import PRIMARY
from dualscope.report.charts.chart import Chart, Item, Note, Section
from dualscope.report.charts.chart_makers import ChartPoint, lines
from dualscope.report.charts.curves import Look, pick
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Number

SHADES = ("@blue", "@vermilion", "@green", "@purple", "@orange", "@navy", "@sky", "@olive", "@grey")
NUMBERS = (
    (f"{PRIMARY} of the learner", PRIMARY, None),
    ("explained share of in-context learning", "explained", None),
    ("accuracy in context", "accuracy", IN_CONTEXT.label),
    ("accuracy of the learner", "accuracy", None),
    ("accuracy without", "accuracy", ZERO_SHOT.label),
)


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
    points: list[ChartPoint] = []
    for index, subject in enumerate(data.subjects):
        learner = learner_of(subject)
        for task in subject.tasks if learner else ():
            line = pick(data.lines(subject), task, "trained", str(learner), PRIMARY, (IN_CONTEXT.label,))
            for layer, value, low, high in line.points if line else ():
                depth = round(layer / max(*line.layers, 1), 4) if line else 0.0
                row = (subject.name, task, str(learner), str(layer))
                name = f"{subject.name}: {learner}"
                points.append(
                    ChartPoint(
                        task, name, style(index), depth, Number(value, low, high), row, task, f"depth {depth:.2f}"
                    )
                )
    shell = Chart(
        "compared-layers",
        "Likeness by depth, every model",
        "How alike in-context learning's and the learner's changes of the attention outputs are, layer by layer, "
        "one line a model, with 95 % intervals.",
        "Lines that rise and fall at the same depth say that the likeness has the same place in every model. Whether "
        "it is more than the controls give is for each model's own panel to say.",
        metrics=(PRIMARY,),
    )
    axis = {"title": {"text": "depth (first layer to last)"}, "range": [-0.03, 1.03]}
    return lines(shell, points, ["model", "task", "learner", "layer", PRIMARY], axis)


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


def style(index: int) -> Look:
    return Look(SHADES[index % len(SHADES)], MARKS[(index + index // len(SHADES)) % len(MARKS)])


def against_step(data: Data) -> Chart | None:
    """A line for every training and task, where a training has several checkpoints."""
    families: dict[str, list[Grown]] = {}
    for subject in data.subjects:
        if (model := Grown.of(subject)).step is not None:
            families.setdefault(model.family, []).append(model)
    families = {name: own for name, own in families.items() if len({model.step for model in own}) > 1}
    if not families:
        return None
    trainings = {
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
        trainings,
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
    trainings: dict[str, tuple[str, list[Grown]]],
    place: Callable[[Grown], int | None],
    scale: dict[str, Any],
) -> Chart | None:
    zero = scale.pop("zero", None)
    points = [
        ChartPoint(what, name, style(index), at or zero, Number.of(row), (s.name, task, what, f"{at:,}"), task, s.name)
        for what, metric, label in NUMBERS
        for index, (name, (task, models)) in enumerate(trainings.items())
        for at, s, row in sorted(_points(models, task, metric, label, place), key=lambda point: point[0])
    ]
    shell = Chart(id_, title, about, reads, metrics=(PRIMARY, "explained", "accuracy"))
    columns = ["model", "task", "what", axis, "value"]
    return lines(shell, points, columns, {"title": {"text": axis}, **scale}, by_task=False)


def _points(
    models: Sequence[Grown], task: str, metric: str, label: str | None, place: Callable[[Grown], int | None]
) -> list[tuple[int, Subject, SummaryRow]]:
    found: list[tuple[int, Subject, SummaryRow]] = []
    for model in models:
        who, at = label or learner_of(model.subject), place(model)
        row = model.subject.get(task, who, metric) if who else None
        if at is not None and row is not None:
            found.append((at, model.subject, row))
    return found
