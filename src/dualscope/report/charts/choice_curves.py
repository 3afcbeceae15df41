"""What learners leave open and was chosen on spare training examples: the choices, and the curves that they rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualscope.choosing.halving import FIGURES, HELD_OUT
from dualscope.report.charts.chart import Chart, Item, Panel, short
from dualscope.report.charts.curves import Look, line_trace
from dualscope.report.charts.dots import marks
from dualscope.report.data import Data
from dualscope.report.reported_run import Document
from dualscope.report.table import Entry, Number, Table

WIDE = 100  # an axis whose ends are so many times apart is drawn by powers of ten
Tried = list[tuple[dict[str, Any], float]]


def items(data: Data) -> list[Item]:
    """A table of the choices and a chart of their curves; nothing where nothing was chosen."""
    found = [choice for source in data.sources for choice in source.choices]
    if not found:
        return []
    return [_choices(found), *([_curves(found)] if any(map(_panel, found)) else [])]


def _choices(found: Sequence[Document]) -> Table:
    rows: list[list[Entry]] = []
    for choice in found:
        accuracies = _tried(choice, "accuracy")
        rows.append(
            [
                *_who(choice),
                _in_words(choice["settings"]),
                str(sum(bool(settings) for settings, _ in _figures(choice)[1])),
                str(choice["examples"]),
                Number(_of_chosen(accuracies, choice)),
                Number(_before(accuracies)),
                Number(choice.get("seconds"), digits=1),
            ]
        )
    columns = [
        "model", "task", "learner", "chosen", "tried", "examples", "accuracy there", "zero-shot there", "seconds",
    ]  # fmt: skip
    return Table.build(columns, rows, title="What was chosen on spare training examples", folded=True)


def _curves(found: Sequence[Document]) -> Chart:
    rows: list[list[Entry]] = []
    for choice in found:
        figure, tried = _figures(choice)
        rows += [
            [*_who(choice), _in_words(settings) or "zero-shot", figure, Number(value)] for settings, value in tried
        ]
    return Chart(
        "choices",
        "The curves that settings were chosen from",
        "How well what was tried did on spare training examples, mean over seeds: accuracy, or of what is fitted the "
        "loss on examples held out; at each place the best of what else was open. The diamond is the choice, the "
        "broken line the model before any learning.",
        "A flat curve says that the choice hardly matters; one that is best at its end, that a better one may lie "
        "beyond. Queries were not looked at.",
        tuple(panel for choice in found if (panel := _panel(choice)) is not None),
        Table.build(["model", "task", "learner", "tried", "figure", "value"], rows),
    )


def _panel(choice: Document) -> Panel | None:
    """Against the setting of which most values were tried; None where there is none with several."""
    figure, every = _figures(choice)
    tried = [(settings, value) for settings, value in every if settings]
    numbers: dict[str, set[float]] = {}
    for settings, _ in tried:
        for name, value in sorted(settings.items()):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                numbers.setdefault(name, set()).add(value)
    axis = max(numbers, key=lambda name: len(numbers[name]), default=None)
    if axis is None or len(numbers[axis]) < 2:
        return None
    best = max if figure == "accuracy" else min
    x = sorted(numbers[axis])
    y = [best(value for settings, value in tried if settings.get(axis) == at) for at in x]
    traces = [_line("tried", x, y, "@blue", "solid")]
    before = _before(every)
    if before is not None:
        traces.append(_line("zero-shot", [x[0], x[-1]], [before, before], "@axis", "dash") | {"mode": "lines"})
    chosen = _of_chosen(tried, choice)
    if chosen is not None:
        at = [short(choice["settings"][axis])]
        traces.append(marks("chosen", at, [short(chosen)], "diamond", "@green", 11, 0))
    log = x[0] > 0 and x[-1] >= WIDE * x[0]
    layout = {
        "xaxis": {"title": {"text": axis}, **({"type": "log"} if log else {})},
        "yaxis": {"title": {"text": figure}},
    }
    model, task, learner = _who(choice)
    return Panel(traces, layout, f"{learner} · {task} · {model}", 260, task=task)


def _line(name: str, x: Sequence[float], y: Sequence[float], shade: str, dash: str) -> dict[str, Any]:
    reaches = [(value, None, None) for value in y]
    return line_trace(name, [short(value) for value in x], reaches, Look(shade, dash=dash), bars=False)


def _figures(choice: Document) -> tuple[str, Tried]:
    """What the candidates were told apart by, and each one's."""
    accuracies = _tried(choice, "accuracy")
    return ("accuracy", accuracies) if accuracies else ("loss held out", _tried(choice, HELD_OUT))


def _tried(choice: Document, figure: str) -> Tried:
    """Every candidate with the mean over seeds; one without settings is the model before any learning."""
    found: dict[str, tuple[dict[str, Any], list[float]]] = {}
    for row in choice["curve"]:
        value = row.get(figure)
        if isinstance(value, (int, float)) and math.isfinite(value):
            settings = {name: own for name, own in row.items() if name not in (*FIGURES, HELD_OUT)}
            found.setdefault(_in_words(settings), (settings, []))[1].append(value)
    return [(settings, sum(values) / len(values)) for settings, values in found.values()]


def _before(tried: Tried) -> float | None:
    return next((value for settings, value in tried if not settings), None)


def _of_chosen(tried: Tried, choice: Document) -> float | None:
    """A choice may name more than what its candidates differ in, such as the heads of a function vector."""
    chosen = choice["settings"]
    fits = (v for own, v in tried if own and all(chosen.get(name) == value for name, value in own.items()))
    return next(fits, None)


def _who(choice: Document) -> tuple[str, str, str]:
    given = _in_words(choice["options"])
    return choice["model"], choice["task"], f"{choice['learner']}[{given}]" if given else choice["learner"]


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
