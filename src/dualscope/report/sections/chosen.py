"""What learners leave open and was chosen on spare training examples: the choices, and the curves that they rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualscope.core.halving import FIGURES
from dualscope.report.charts.chart import Chart, Item, Panel, short
from dualscope.report.data import Data
from dualscope.report.source import Document
from dualscope.report.table import Entry, Number, Table

WIDE = 100  # an axis whose ends are so many times apart is drawn by powers of ten


def items(data: Data) -> list[Item]:
    """A table of the choices and a chart of their curves; nothing where nothing was chosen."""
    found = [choice for source in data.sources for choice in source.choices]
    if not found:
        return []
    return [_choices(found), *([_curves(found)] if any(map(_panel, found)) else [])]


def _choices(found: Sequence[Document]) -> Table:
    rows: list[list[Entry]] = []
    for choice in found:
        tried = _tried(choice)
        best = [accuracy for settings, accuracy in tried if _is_chosen(settings, choice)]
        rows.append(
            [
                *_who(choice),
                _in_words(choice["settings"]),
                str(sum(bool(settings) for settings, _ in tried)),
                str(choice["examples"]),
                Number(best[0] if best else None),
                Number(_before(choice)),
                Number(choice.get("seconds"), digits=1),
            ]
        )
    columns = [
        "model", "task", "learner", "chosen", "tried", "examples", "accuracy there", "zero-shot there", "seconds",
    ]  # fmt: skip
    return Table.build(columns, rows, title="What was chosen on spare training examples", folded=True)


def _curves(found: Sequence[Document]) -> Chart:
    rows: list[list[Entry]] = [
        [*_who(choice), _in_words(settings) or "zero-shot", Number(accuracy)]
        for choice in found
        for settings, accuracy in _tried(choice)
    ]
    return Chart(
        "choices",
        "The curves that settings were chosen from",
        "Accuracy on spare training examples, mean over seeds, of what was tried: at each place the best of what else "
        "was open. The diamond is the choice, the broken line the model before any learning.",
        "A flat curve says that the choice hardly matters; one that is highest at its end, that a better one may lie "
        "beyond. Queries were not looked at.",
        tuple(panel for choice in found if (panel := _panel(choice)) is not None),
        Table.build(["model", "task", "learner", "tried", "accuracy there"], rows),
    )


def _panel(choice: Document) -> Panel | None:
    """Against the setting of which most values were tried; None where there is none with several."""
    tried = [(settings, accuracy) for settings, accuracy in _tried(choice) if settings]
    numbers: dict[str, set[float]] = {}
    for settings, _ in tried:
        for name, value in sorted(settings.items()):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                numbers.setdefault(name, set()).add(value)
    axis = max(numbers, key=lambda name: len(numbers[name]), default=None)
    if axis is None or len(numbers[axis]) < 2:
        return None
    x = sorted(numbers[axis])
    y = [max(accuracy for settings, accuracy in tried if settings.get(axis) == value) for value in x]
    chosen = choice["settings"].get(axis)
    traces: list[dict[str, Any]] = [_line("tried", x, y, "@blue", "solid")]
    before = _before(choice)
    if before is not None:
        traces.append(_line("zero-shot", [x[0], x[-1]], [before, before], "@axis", "dash"))
        traces[-1]["mode"] = "lines"
    if chosen in x:
        mark = {"color": "@green", "symbol": "diamond", "size": 11}
        at = [accuracy for settings, accuracy in tried if _is_chosen(settings, choice)]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "chosen",
                "x": [chosen],
                "y": at[:1],
                "marker": mark,
            }
        )
    log = x[0] > 0 and x[-1] >= WIDE * x[0]
    layout = {
        "xaxis": {"title": {"text": axis}, **({"type": "log"} if log else {})},
        "yaxis": {"title": {"text": "accuracy"}},
    }
    model, task, learner = _who(choice)
    return Panel(traces, layout, f"{learner} · {task} · {model}", 260, task=str(choice["task"]))


def _line(name: str, x: Sequence[float], y: Sequence[float], shade: str, dash: str) -> dict[str, Any]:
    points: dict[str, Any] = {"x": [short(value) for value in x], "y": [short(value) for value in y]}
    style = {"line": {"color": shade, "dash": dash}, "marker": {"color": shade}}
    return {"type": "scatter", "mode": "lines+markers", "name": name, **points, **style}


def _tried(choice: Document) -> list[tuple[dict[str, Any], float]]:
    """Every candidate with its accuracy, the mean over seeds; one without settings is the model before any learning."""
    found: dict[str, tuple[dict[str, Any], list[float]]] = {}
    for row in choice["curve"]:
        accuracy = row.get("accuracy")
        if isinstance(accuracy, (int, float)) and math.isfinite(accuracy):
            settings = {name: value for name, value in row.items() if name not in FIGURES}
            found.setdefault(_in_words(settings), (settings, []))[1].append(accuracy)
    return [(settings, sum(values) / len(values)) for settings, values in found.values()]


def _before(choice: Document) -> float | None:
    return next((accuracy for settings, accuracy in _tried(choice) if not settings), None)


def _is_chosen(settings: Mapping[str, Any], choice: Document) -> bool:
    """A choice may name more than what its candidates differ in, such as the heads of a function vector."""
    return bool(settings) and all(choice["settings"].get(name) == value for name, value in settings.items())


def _who(choice: Document) -> tuple[str, str, str]:
    given = _in_words(choice["options"])
    learner = f"{choice['learner']}[{given}]" if given else choice["learner"]
    return choice["model"], choice["task"], learner


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
