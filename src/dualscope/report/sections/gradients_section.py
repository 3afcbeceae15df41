"""Where the gradients are, layer by demonstration; and whether the gradient learners are the same thing (`alpha`)."""

from __future__ import annotations

import math

import numpy as np
import pyarrow.compute as pc

from dualscope.report.charts.chart import Chart, Item, Panel, Section, Tabs, short, slug
from dualscope.report.charts.chart_makers import coloured, dots, rows_of
from dualscope.report.charts.dots import Series
from dualscope.report.published import publications
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject, where
from dualscope.report.table import Entry, Number, Table

Norms = list[list[float]]
"""[layers][steps]"""


def section(data: Data) -> Section:
    found = [
        (subject, task, cell, grid)
        for subject in data.subjects
        for task in subject.tasks
        for cell in _chosen(subject, task)
        if (grid := _grid(subject, cell))
    ]
    items: list[Item] = []
    made = []
    for task in dict.fromkeys(task for _, task, _, _ in found):
        own = [(s, cell, grid) for s, name, cell, grid in found if name == task]
        made.append((task, _chart(data, task, own)))
    if made:
        items.append(Tabs("gradient-tabs", "Gradient norms of", tuple(made)))
    about = "The norm of each demonstration's gradient on each layer's key and value weights, step by step."
    missing = "" if made else "gradient norms: no gradient learner was run"
    return Section("gradients", "Gradient norms", tuple(items), about, folded=True, unmeasured=missing)


def _chosen(subject: Subject, task: str) -> list[str]:
    """One episode a task: the first seed and order, the trained model, every gradient learner."""
    own = {
        name: cell
        for name, cell in subject.cells.items()
        if (cell.episode.task, cell.episode.model.variant) == (task, "trained")
    }
    found = []
    for learner in subject.gradient_learners:
        names = [name for name, cell in own.items() if cell.learning.label == learner]
        if names:
            found.append(min(names, key=lambda name: (own[name].episode.seed, own[name].episode.order)))
    return found


def _grid(subject: Subject, cell: str) -> Norms:
    table = subject.source.table(cell)
    rows = table.filter(pc.and_(pc.equal(table["metric"], "grad_norm"), pc.is_valid(table["step"])))
    if not rows.num_rows:
        return []
    layers, steps = (rows[name].to_numpy() for name in ("layer", "step"))
    grid = np.full((layers.max() + 1, steps.max() + 1), math.nan)
    grid[layers, steps] = rows["value"].to_numpy()
    found: Norms = grid.tolist()
    return found


def _chart(data: Data, task: str, found: list[tuple[Subject, str, Norms]]) -> Chart:
    logs = [[[_log(v) for v in row] for row in grid] for _, _, grid in found]
    ends = [v for grid in logs for row in grid for v in row if v is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    panels, rows = [], []
    for (subject, cell, grid), log in zip(found, logs, strict=True):
        own = subject.cells[cell]
        learner = own.learning.label
        title = data.title(subject, learner)
        panels.append(_panel(log, title, task, low, high))
        for layer, values in enumerate(grid):
            for step, value in enumerate(values):
                entries: list[Entry] = [subject.name, task, learner, str(own.episode.seed), str(layer)]
                rows.append([*entries, str(step), Number(value, digits=4)])
    subject, first, _ = found[0]
    return Chart(
        f"gradients-{slug(task)}",
        f"Gradient norms on {task}",
        "The norm of the gradient of each layer's key and value projections at each step (one demonstration "
        f"a step), in one episode: seed {subject.cells[first].episode.seed}. The colours are logarithmic, the same "
        "in all maps.",
        "A row that stays bright is a layer that learns most; a column that is bright is a demonstration "
        "that surprised the model. GD's gradients shrink on their way down; LCGD gives every layer its own "
        "loss.",
        tuple(panels),
        Table.build(["model", "task", "learner", "seed", "layer", "step", "grad_norm"], rows),
        ("grad_norm",),
    )


def _log(value: float) -> float | None:
    return short(math.log10(value), 4) if value > 0 and math.isfinite(value) else None


def _panel(log: list[list[float | None]], title: str, task: str, low: float, high: float) -> Panel:
    ticks = list(range(math.ceil(low), math.floor(high) + 1))
    ticks = ticks[:: max(1, len(ticks) // 6)]
    powers: dict[float, str] = {tick: f"10<sup>{tick}</sup>" for tick in ticks}
    data = coloured(log, low, high, powers, "layer %{y}, demonstration %{x}: 10^%{z:.2f}")
    layout = {
        "xaxis": {"title": {"text": "demonstration"}, "zeroline": False, "showgrid": False},
        "yaxis": {
            "title": {"text": "layer"},
            "zeroline": False,
            "showgrid": False,
            "dtick": 1 if len(log) <= 12 else 4,
        },
    }
    return Panel([data], layout, title, 110 + max(120, 14 * len(log)), task=task)


def likeness_of_learners(data: Data) -> Section:
    shell = Chart(
        "alpha-by-task",
        "alpha by task",
        "The cosine between the changes of the attention maps under two gradient learners, on the trained model. The "
        "table has all variants and controls.",
        f"1: both move attention the same way. Published: {_published()}, for GD and LCGD.",
        metrics=("alpha",),
    )
    columns = ["model", "task", "learner", "against", "variant", "alpha"]
    chart = dots(
        shell, data, "alpha", _series, columns, rows_of(data, ["task", "label", "reference", "variant"], metric="alpha")
    )
    items = () if chart is None else (chart,)
    about = (
        "Plain GD and layer-causal GD (LCGD: every layer learns from its own loss) see the same demonstrations; "
        "alpha says whether they do the same."
    )
    missing = "" if items else "`alpha`, which needs gd and a second gradient learner"
    return Section("alpha", "GD against layer-causal GD", items, about, folded=True, unmeasured=missing)


def _published() -> str:
    values = sorted(f.value for f in publications().figures if f.metric == "alpha")
    return f"{values[0]:g} to {values[-1]:g} ({publications().label})"


def _series(subject: Subject) -> list[Series]:
    found: dict[tuple[str, str], Series] = {}
    for row in where(subject.rows, metric="alpha", variant="trained", role="hypothesis", task=subject.tasks):
        name = f"{row['label']} and {row['reference']}"
        key = (row["label"], row["reference"] or "")
        found.setdefault(key, Series(name, subject.colour(row["label"]), "circle")).rows[row["task"]] = Number.of(row)
    return list(found.values())
