"""What explains in-context learning best: every hypothesis beside its own controls and the ceilings.

And the settings that learners leave open: what was chosen on spare training examples, and the curves behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualscope.choosing.halving import FIGURES, HELD_OUT
from dualscope.core.words import Control
from dualscope.findings.ranking import NULLS, Ranking, Standing, rankings
from dualscope.findings.summary import ALL_TASKS
from dualscope.report.charts.chart import Chart, Item, Listing, Panel, Section, plain, short, whiskers
from dualscope.report.charts.chart_makers import ChartPoint, lines
from dualscope.report.charts.curves import Look, line_trace
from dualscope.report.charts.dots import marks
from dualscope.report.report_data import Data
from dualscope.report.reported_run import Document
from dualscope.report.subject import Subject, where
from dualscope.report.table import Badge, Entry, Number, Table

MARKS: dict[Control, str] = {"random-labels": "x", "other-task": "cross", "random-update": "triangle-up"}
BESIDE = ("accuracy", "agreement", "agreement_kappa", "explained", "explained_next_token", "topk_overlap", "sim_aou")
GLYPHS = {"x": "✕", "cross": "✚", "triangle-up": "▲"}
LEAST = -0.5  # shares below are drawn at the edge; the table has them as they are


def section(data: Data) -> Section | None:
    found = [(subject, rankings(subject.rows)) for subject in data.subjects]
    if not any(len(ranking.hypotheses) + len(ranking.empty) > 1 for _, ranked in found for ranking in ranked):
        return None
    words = tuple(
        (subject.name if data.side_by_side else "", " ".join(ranking.words()))
        for subject, ranked in found
        for ranking in ranked
        if ranking.task != ALL_TASKS and (ranking.hypotheses or ranking.empty)
    )
    said = Listing("Every task in a few sentences", words, prose=True)
    items: list[Item] = [_ranked(data, found), said, *_nulls(data), _everything(found)]
    shots = _by_shots(data)
    items += [*([shots] if shots is not None else []), *choice_items(data)]
    about = (
        "How much of the context's effect on the label probabilities does each learner reproduce? 1 is all of it, 0 "
        "none, below 0 worse than doing nothing. An effect that a temperature and a bias for each class can imitate is "
        "not counted."
    )
    return Section("hypotheses", "What explains it best?", tuple(items), about)


def _ranked(data: Data, found: list[tuple[Subject, list[Ranking]]]) -> Chart:
    panels = []
    rows: list[list[Entry]] = []
    for subject, ranked in found:
        for ranking in ranked:
            if ranking.task == ALL_TASKS:
                continue
            if ranking.hypotheses:
                panels.append(_panel(ranking, data.title(subject, ranking.task)))
            places = [str(place) for place, _ in enumerate(ranking.hypotheses, 1)] + ["ceiling"] * len(ranking.ceilings)
            for place, one in zip(places, (*ranking.hypotheses, *ranking.ceilings), strict=True):
                own, known = Number.of(one.explained), {} if place == "ceiling" else one.controls
                head: list[Entry] = [subject.name, ranking.task, place, one.label, own, own.seeds or own.text]
                rows.append([*head, Number.of(one.mismatched), *(Number.of(known.get(name)) for name in NULLS)])
            none = [Number(None)] * (1 + len(NULLS))
            rows += [[subject.name, ranking.task, "–", label, Number(None), "–", *none] for label in ranking.empty]
    return Chart(
        "explained",
        "Explained share, best first",
        f"Each bar is a learner's share with its 95 % interval, each ○ one seed. The same learner under a control: "
        f"{_controls_key()}. ◆ is a ceiling, which may look at in-context learning itself. Shares below "
        f"−{-LEAST:g} are drawn at that edge.",
        "Only what a bar has above its own controls counts. Where in-context learning with other demonstrations stays "
        "below 1, no learner can be expected to reach 1.",
        tuple(panels),
        Table.build(
            [
                *("model", "task", "place", "hypothesis", "explained", "each seed", "by answers to other queries"),
                *(f"under {n}" for n in NULLS),
            ],
            rows,
        ),
        ("explained", "explained_mismatched"),
        named=True,
    )


def _controls_key() -> str:
    return ", ".join(f"{GLYPHS[mark]} {control}" for control, mark in MARKS.items())


def _nulls(data: Data) -> list[Table]:
    """What answers explain that know nothing of the demonstrations' content, where that was asked for."""
    metrics = ("explained_null", "explained_raw_null")
    found: dict[tuple[str, str, str], dict[str, Number]] = {}
    for subject in data.subjects:
        for row in where(subject.rows, metric=metrics, variant="trained", task=subject.tasks):
            key = (subject.name, str(row["task"]), str(row["reference"]))
            found.setdefault(key, {})[row["metric"]] = Number.of(row)
    rows: list[list[Entry]] = [
        [*key, *(numbers.get(name, Number(None)) for name in metrics)] for key, numbers in found.items()
    ]
    columns = ["model", "task", "answers", "explained", "explained_raw (calibration counts)"]
    title = "Answers that know nothing of what the demonstrations say"
    return [Table.build(columns, rows, title=title, folded=True)] if rows else []


def _panel(ranking: Ranking, title: str) -> Panel:
    everyone = [*ranking.hypotheses, *ranking.ceilings]
    names = [plain(one.label) for one in everyone]

    def reach(value: Any) -> float | None:
        number = short(value)
        return None if number is None else max(LEAST, number)

    bars = ranking.hypotheses
    values = [reach(one.explained["value"]) for one in bars]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "hypothesis",
            "x": values,
            "y": [plain(one.label) for one in bars],
            "marker": {"color": "@blue"},
            "error_x": {**whiskers(values, *_ends(bars)), "color": "@ink"},
            "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
        }
    ]
    dots = [(reach(value), plain(one.label)) for one in bars if len(one.each) > 1 for value in one.each]
    if dots:
        traces.append(marks("each seed", [x for x, _ in dots], [y for _, y in dots], "circle-open", "@ink", 6))
    tops = ranking.ceilings
    if tops:
        tall = [reach(one.explained["value"]) for one in tops]
        traces.append(marks("ceiling", tall, [plain(one.label) for one in tops], "diamond", "@green"))
        traces[-1]["error_x"] = {**whiskers(tall, *_ends(tops)), "color": "@green"}
    for control, symbol in MARKS.items():
        own = [(one, one.controls[control]) for one in bars if control in one.controls]
        if own:
            at = [reach(row["value"]) for _, row in own]
            traces.append(marks(f"under {control}", at, [plain(one.label) for one, _ in own], symbol, "@vermilion"))
    layout = {
        "xaxis": {"title": {"text": "explained"}, "zeroline": True, "range": [LEAST - 0.05, 1.08]},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": names[::-1]},
    }
    return Panel(traces, layout, title, 90 + 26 * len(names), task=ranking.task)


def _ends(standings: tuple[Standing, ...]) -> tuple[list[Any], list[Any]]:
    return [one.explained.get("low") for one in standings], [one.explained.get("high") for one in standings]


def _everything(found: list[tuple[Subject, list[Ranking]]]) -> Table:
    """Predictions and attention outputs side by side."""
    rows: list[list[Entry]] = []
    for subject, ranking in ((s, ranking) for s, ranked in found for ranking in ranked):
        for one in (*ranking.hypotheses, *ranking.ceilings):
            beside: dict[str, Any] = {**one.beside, "explained": one.explained}
            beside["sim_aou"] = beside.get("sim_aou") or beside.get("sim_aou_above")
            role = Badge("ceiling", "none") if one in ranking.ceilings else "hypothesis"
            rows.append([subject.name, ranking.task, one.label, role, *(Number.of(beside.get(m)) for m in BESIDE)])
    columns = [
        "model", "task", "learner", "role", "accuracy", "agreement with ICL", "above chance (kappa)", "explained",
        "explained, next token", "top 10 shared", "sim_aou",
    ]  # fmt: skip
    title = "Predictions and attention outputs side by side (of a learner that acts at one layer: the layers above it)"
    return Table.build(columns, rows, title=title, folded=True)


def _by_shots(data: Data) -> Chart | None:
    """The share against the number of demonstrations, where there are several."""
    points: list[ChartPoint] = []
    for subject in data.subjects:
        rows = where(
            subject.all_rows, metric="explained", reference="in-context", variant="trained", task=subject.tasks
        )
        rows = [row for row in rows if row["role"] == "hypothesis" or row["control"] in NULLS]
        shown = subject.setting.shots  # all but the shots as in the other charts
        own = [row for row in rows if subject.in_setting({**row, "shots": shown})]
        if len({row["shots"] for row in own}) < 2:
            continue
        order = {task: place for place, task in enumerate(subject.tasks)}
        for row in sorted(own, key=lambda r: (order[r["task"]], r["shots"])):
            look = Look(subject.colour(row["label"]), dash="dot" if row["control"] else "solid")
            words = (subject.name, row["task"], row["label"], str(row["shots"]))
            title = data.title(subject, row["task"])
            points.append(ChartPoint(title, row["label"], look, row["shots"], Number.of(row), words, row["task"]))
    shell = Chart(
        "explained-by-shots",
        "Explained share by number of demonstrations",
        "The explained share of each hypothesis against the number of demonstrations; dotted: under its controls.",
        "A mechanism explains as much with many demonstrations as with few.",
        metrics=("explained",),
    )
    columns = ["model", "task", "hypothesis", "shots", "explained"]
    return lines(shell, points, columns, {"title": {"text": "shots"}}, "explained")


WIDE = 100  # an axis whose ends are so many times apart is drawn by powers of ten
Tried = list[tuple[dict[str, Any], float]]


def choice_items(data: Data) -> list[Item]:
    """A table of the choices and a chart of their curves; nothing where nothing was chosen."""
    found = [choice for source in data.sources for choice in source.choices]
    if not found:
        return []
    return [_choices(found), *([_curves(found)] if any(map(_choice_panel, found)) else [])]


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
        tuple(panel for choice in found if (panel := _choice_panel(choice)) is not None),
        Table.build(["model", "task", "learner", "tried", "figure", "value"], rows),
    )


def _choice_panel(choice: Document) -> Panel | None:
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
