"""What happens when the study varies something: rate, shots, labels, order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow.compute as pc

from dualscope.report.charts.chart import Chart, Item, Panel, Section, Tabs, plain, short
from dualscope.report.charts.chart_makers import ChartPoint, lines
from dualscope.report.charts.curves import Look
from dualscope.report.charts.dots import marks
from dualscope.report.charts.palette import Palette
from dualscope.report.report_data import Data
from dualscope.report.subject import LabelledRow, Subject, where
from dualscope.report.table import Entry, Number, Table

Fixed = Literal["shots", "demo_labels", "corrupt"]
METRICS = ("sim_aou", "sim_am_delta", "accuracy")


@dataclass(frozen=True)
class Axis:
    """Something that a study may vary."""

    name: str
    title: str
    place: Callable[[LabelledRow], Any]
    """Where on the axis a row stands; None where it has no place there."""
    holds: Callable[[Subject, LabelledRow], bool]
    """Whether everything else is as in the other charts."""
    log: bool = False
    reads: str = ""


def _labels(row: LabelledRow) -> str:
    return str(row["demo_labels"]) if row["demo_labels"] == "gold" else f"{row['demo_labels']} ({row['corrupt']})"


def _same(subject: Subject, row: LabelledRow, *names: Fixed) -> bool:
    return all(row[name] == getattr(subject.setting, name) for name in names)


def _same_rate(subject: Subject, row: LabelledRow) -> bool:
    wanted = subject.rates.get(row["task"])
    return not subject.several_rates or row["lr"] in (None, wanted)


AXES = (
    Axis(
        "lr",
        "learning rate",
        lambda row: row["lr"],
        lambda s, row: _same(s, row, "shots", "demo_labels", "corrupt"),
        log=True,
        reads="A likeness that holds at one rate only is a likeness of sizes; where GD stops learning, it "
        "means nothing.",
    ),
    Axis(
        "shots",
        "shots",
        lambda row: row["shots"] or None,
        lambda s, row: _same(s, row, "demo_labels", "corrupt") and _same_rate(s, row),
        log=True,
        reads="More demonstrations are more steps for GD and a longer context for ICL.",
    ),
    Axis(
        "labels",
        "labels of the demonstrations",
        _labels,
        lambda s, row: _same(s, row, "shots") and _same_rate(s, row),
        reads="With flipped or random labels GD learns something else. If ICL does not follow, it does not "
        "learn from labels as GD does.",
    ),
)


def section(data: Data) -> Section:
    items: list[Item] = []
    absent = []
    for axis in AXES:
        made = [(metric, chart) for metric in METRICS if (chart := _chart(data, axis, metric)) is not None]
        if made:
            items.append(Tabs(f"axis-{axis.name}-tabs", f"Against {axis.title}", tuple(made)))
        else:
            absent.append(axis.title)
    order = _orders(data)
    if order is None:
        absent.append("order of the demonstrations")
    else:
        items.append(order)
    about = "The same numbers along what the study varies, everything else as in the other charts."
    missing = f"how likeness depends on what was not varied: {', '.join(absent)}" if absent else ""
    return Section("axes", "What it depends on", tuple(items), about, unmeasured=missing)


def _points(subject: Subject, axis: Axis, metric: str) -> dict[tuple[str, str], list[tuple[Any, LabelledRow]]]:
    """By task and learner, along the axis; empty where the axis has one point."""
    found: dict[tuple[str, str], dict[Any, LabelledRow]] = {}
    shown = [*_with_controls(subject), *(["in-context"] if metric == "accuracy" else [])]
    for row in where(
        subject.all_rows,
        metric=metric,
        variant="trained",
        label=shown,
        reference=("in-context", None),
        task=subject.tasks,
    ):
        if axis.holds(subject, row) and (place := axis.place(row)) is not None:
            found.setdefault((row["task"], row["label"]), {})[place] = row
    # Rates that differ from task to task are no axis: each of them has one point.
    found = {key: points for key, points in found.items() if len(points) > 1}
    return {
        key: sorted(points.items(), key=lambda p: (p[0] != "gold", p[0]))
        if axis.name == "labels"
        else sorted(points.items())
        for key, points in found.items()
    }


def _with_controls(subject: Subject) -> list[str]:
    """Learners under test, each under its controls, and what teaches nothing."""
    tested = {subject.learnings[name].name for name in subject.gradient_learners}
    return [
        name
        for name, learning in subject.learnings.items()
        if name in subject.gradient_learners
        or (subject.role(name) == "null" and (learning.name in tested or not learning.control))
    ]


def _chart(data: Data, axis: Axis, metric: str) -> Chart | None:
    points = [
        ChartPoint(
            data.title(subject, task),
            learner,
            _look(subject, learner),
            place,
            Number.of(row),
            (subject.name, task, learner, f"{place:g}" if isinstance(place, float) else str(place)),
            task,
        )
        for subject in data.subjects
        for (task, learner), found in _points(subject, axis, metric).items()
        for place, row in found
    ]
    shell = Chart(
        f"axis-{axis.name}-{metric}",
        f"{metric} against {axis.title}",
        f"{metric} on the trained model, by task, with 95 % intervals over seeds and queries; dotted: its controls.",
        axis.reads,
        metrics=(metric,),
    )
    kind: dict[str, Any] = {"type": "log", "dtick": 1} if axis.log else {"type": "category"}
    if axis.name == "shots":
        ticks = sorted({point.x for point in points})
        kind = {"type": "log", "tickvals": ticks, "ticktext": [str(t) for t in ticks]}
    columns = ["model", "task", "learner", axis.title, metric]
    return lines(shell, points, columns, {"title": {"text": axis.title}, **kind})


def _look(subject: Subject, learner: str) -> Look:
    look = Look(subject.colour(learner), subject.palette.mark(learner))
    return replace(look, dash="dot", width=1.3, size=4) if subject.role(learner) == "null" else look


def _orders(data: Data) -> Chart | None:
    """A dot for every order of every seed, mean marked: how far order alone moves the numbers."""
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        if len({cell.episode.order for cell in subject.cells.values()}) < 2:
            continue
        for metric in ("sim_aou", "accuracy"):
            found: dict[str, list[tuple[str, int, int, float]]] = {}
            learners = [*subject.gradient_learners, *(["in-context"] if metric == "accuracy" else [])]
            for name, cell in subject.cells.items():
                own, label = cell.episode, cell.learning.label
                if own.model.variant == "trained" and label in learners:
                    table = subject.source.table(name)
                    kept = table.filter(pc.and_(pc.equal(table["metric"], metric), pc.is_null(table["layer"])))
                    for value in kept["value"].to_pylist()[:1]:
                        found.setdefault(label, []).append((own.task, own.seed, own.order, value))
            if found:
                head = data.title(subject, metric)
                panels.append(_strip(found, subject.tasks, metric, head, subject.palette))
            for label, points in found.items():
                rows += [[subject.name, t, label, metric, str(s), str(o), Number(v)] for t, s, o, v in points]
    if not panels:
        return None
    return Chart(
        "orders",
        "Sensitivity to the order of demonstrations",
        "One dot for each seed and order of the same demonstrations, on the trained model.",
        "How wide a learner's dots spread is how much order alone matters. GD visits demonstrations in "
        "order, and ICL reads them in order; if both were the same, the same orders would help both.",
        tuple(panels),
        Table.build(["model", "task", "learner", "metric", "seed", "order", "value"], rows),
        ("sim_aou", "accuracy"),
    )


def _strip(
    points: dict[str, list[tuple[str, int, int, float]]], tasks: list[str], axis: str, title: str, palette: Palette
) -> Panel:
    """Dots of a task around its place, learners one under the other."""
    place = {task: len(tasks) - 1 - i for i, task in enumerate(tasks)}
    step = 0.7 / len(points)
    data = []
    for i, (learner, found) in enumerate(points.items()):
        lower = ((len(points) - 1) / 2 - i) * step
        y = [round(place[task] + lower, 3) for task, *_ in found]
        x, shade = [short(value) for *_, value in found], palette.colour(learner)
        text = [plain(f"{task}, seed {seed}, order {order}") for task, seed, order, _ in found]
        own = marks(learner, x, y, palette.mark(learner), shade, 8, 0, "%{text}: %{x:.3f}")
        data.append({**own, "text": text, "ids": [plain(task) for task, *_ in found], "opacity": 0.6})
    layout = {
        "xaxis": {"title": {"text": axis}},
        "yaxis": {
            "tickvals": [place[task] for task in tasks],
            "ticktext": [plain(task) for task in tasks],
            "range": [-0.6, len(tasks) - 0.4],
            "zeroline": False,
        },
    }
    return Panel(data, layout, title, 90 + 56 * len(tasks))
