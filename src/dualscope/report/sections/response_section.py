"""The response: when the labels change, do learners move as in-context learning does? What the page opens with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from dualscope.core.response_products import OWN, geometry_matrix, parts_of
from dualscope.core.spec import IN_CONTEXT, CellSpec, EpisodeSpec, LearnerSpec
from dualscope.core.words import JUDGED
from dualscope.findings.answer import learner_title
from dualscope.findings.headline import next_steps
from dualscope.report.charts.chart import Chart, Item, Note, Panel, Section, plain, short, whiskers
from dualscope.report.charts.chart_makers import Grid, matrix
from dualscope.report.charts.dots import marks
from dualscope.report.charts.palette import colour
from dualscope.report.report_data import Data
from dualscope.report.reported_run import Document, ReportedRun
from dualscope.report.table import Badge, Entry, Number, Table

KINDS = {
    "alike": "yes",
    "partly alike": "unclear",
    "different": "no",
    "cannot tell": "none",
    "labels ignored": "none",
    "labels copied": "none",
}
AGAIN = "ICL in another order"
MOST_QUERIES = 40  # of an influence matrix
Found = tuple[ReportedRun, Document]


PLANTED = (
    "What is planted is found: each row is a model into which one learner's change was put on purpose, and the number "
    "of that learner should be the highest"
)


def section(data: Data) -> Section | None:
    found = _verdicts(data)
    if not found:
        return None
    several = len(found) > 1
    items: list[Item] = []
    for source, verdict in found:
        name = _name(source, verdict, data)
        if steps := next_steps([verdict], []):
            said = (f"{step.why}: {_written(step.options)}" for step in steps)
            items.append(Note(f"{name if several else 'Next'}: {'; '.join(said)}.", "missing"))
        items.append(_scale(source, verdict, name if several else ""))
        items.append(_table(verdict, name if several else ""))
        own = name if several else ""
        items += filter(None, (_shares(source, verdict, own), _confusion(verdict), _geometry(source, verdict, own)))
    items += filter(None, map(_influence, data.sources))
    about = (
        "The demonstrations' labels are permuted about twelve times, and nothing else changes: each time is a draw. "
        "The part of the context's effect that does not depend on the labels is the same in every draw; subtracting "
        "the mean over the draws removes it."
    )
    return Section("response", "Do they learn the same?", tuple(items), about)


def headlines(data: Data) -> list[tuple[str, str]]:
    """Each model and setting, and the answer in a few sentences."""
    return [(_name(source, verdict, data), verdict["headline"]) for source, verdict in _verdicts(data)]


def _verdicts(data: Data) -> list[Found]:
    return [(source, verdict) for source in data.sources for verdict in source.response_verdicts]


def _written(options: Mapping[str, Sequence[str]]) -> str:
    """As on the command line."""
    return "`" + " ".join(f"{name} {value}" for name, values in options.items() for value in values) + "`"


def _name(source: ReportedRun, verdict: Document, data: Data) -> str:
    setting = EpisodeSpec.of_row(verdict["setting"])
    run = f"{source.name}: " if len(data.sources) > 1 else ""
    variant = "" if verdict["variant"] == "trained" else f", {verdict['variant']}"
    return f"{run}{setting.model.name}{variant}, {setting.in_words}"


def _tasks(source: ReportedRun, verdict: Document) -> list[str]:
    """In the order of the study, as in every other section."""
    judged = {answer["task"] for answer in verdict["answers"]}
    order = dict.fromkeys(cell.episode.task for cell in source.response_cells.values())
    return [task for task in order if task in judged]


def _title(answer: Document) -> str:
    return learner_title(LearnerSpec.from_facts(answer["learning"]))


def _scale(source: ReportedRun, verdict: Document, name: str) -> Chart:
    panels, rows = [], list[list[Entry]]()
    for task in _tasks(source, verdict):
        for where, words in (("answers", "what the model answers"), ("inside", "inside the model")):
            own, tops = (
                [one for one in verdict[kind] if (one["task"], one["where"]) == (task, where)]
                for kind in ("answers", "ceilings")
            )
            if own:
                panels.append(_panel(own, tops, task, f"{task}: {words}"))
            rows += [_scale_row(one) for one in (*own, *tops)]
    columns = ["task", "learner", "part", "response", "if it were", AGAIN, "every seed"]
    return Chart(
        f"response-scale{'-' + name if name else ''}",
        "When the labels change, who moves alike?" + (f" ({name})" if name else ""),
        "● says how closely a learner moves with in-context learning from one set of labels to the next: a "
        "correlation, with its interval over seeds; ❘ is one seed. ◇ is where ● would lie if in-context learning were "
        "that learner. Grey is chance.",
        "A dot at its diamond means that the learner moves like in-context learning; a dot in the grey is no better "
        "than chance. ■ says how well in-context learning agrees with itself when its demonstrations change places."
        + (
            " ▲ was chosen by ICL's own response: the most that can be said for its kind."
            if verdict["ceilings"]
            else ""
        ),
        tuple(panels),
        Table.build(columns, rows),
        ("response_answers", "response_aou"),
        named=True,
    )


def _scale_row(answer: Document) -> list[Entry]:
    return [
        answer["task"],
        answer["learner"],
        answer["where"],
        Number.of(answer["value"], digits=2),
        Number(answer.get("target"), digits=2),  # a ceiling has none
        Number(answer.get("reliability"), digits=2),
        " ".join(f"{value:.2f}" for value in answer["value"]["seeds"]),
    ]


def _panel(answers: Sequence[Document], ceilings: Sequence[Document], task: str, title: str) -> Panel:
    names = [plain(_title(one)) for one in (*answers, *ceilings)]
    traces: list[dict[str, Any]] = []
    for answer, name in zip((*answers, *ceilings), names, strict=True):
        shade, value = colour(LearnerSpec.from_facts(answer["learning"])), answer["value"]
        seeds = [short(one) for one in value["seeds"]]
        thin = marks("every seed", seeds, [name] * len(seeds), "line-ns", shade, 12, 1)
        traces.append({**thin, "opacity": 0.55})
        mean = [short(value["mean"])]
        bars = {**whiskers(mean, [value["low"]], [value["high"]]), "color": shade}
        mark = "triangle-up" if answer in ceilings else "circle"
        traces.append({**marks(name, mean, [name], mark, shade, 11, 1), "error_x": bars})
        if answer.get("target") is not None:
            traces.append(marks("if it were", [short(answer["target"])], [name], "diamond-open", shade, 12, 1.8))
    again = answers[0]["reliability"]
    if again is not None:
        traces.append(marks(AGAIN, [short(again)], [AGAIN], "square", "@green", 9, 1))
    low = min((a["band"][0] for a in answers if a["band"][0] is not None), default=0.0)
    high = max((a["band"][1] for a in answers if a["band"][1] is not None), default=0.0)
    band = {
        "type": "rect", "xref": "x", "yref": "paper", "x0": short(low), "x1": short(high), "y0": 0, "y1": 1,
        "fillcolor": "@grey", "opacity": 0.16, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "response"}, "range": [-0.35, 1.05]},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": [AGAIN, *reversed(names)]},
        "showlegend": False,
        "shapes": [band],
    }
    return Panel(traces, layout, title, 110 + 34 * (len(names) + 1), task=task)


def _table(verdict: Document, name: str) -> Table:
    rows: list[list[Entry]] = [
        [
            answer["task"],
            _title(answer),
            "answers" if answer["where"] == "answers" else "inside",
            Badge(answer["answer"], KINDS[answer["answer"]]),
            Number.of(answer["value"], digits=2),
            Number(answer["target"], digits=2),
            Number(answer["p_holm"]),
            answer["why"] or "–",
        ]
        for answer in verdict["answers"]
    ]
    columns = ["task", "learner", "part", "answer", "response", "if it were", "p (Holm)", "why"]
    title = "Every answer" + (f" ({name})" if name else "")
    return Table.build(columns, rows, title=title, folded=len(rows) > 8)


def _confusion(verdict: Document) -> Table | None:
    """Is what was planted found, and only that? The sensitivity of this study on this model and task."""
    rows: list[list[Entry]] = []
    plants = list(dict.fromkeys((task, plant) for task, plant, *_ in verdict["confusion"]))
    learners = list(dict.fromkeys(learner for _, _, learner, *_ in verdict["confusion"]))
    for task, plant in plants:
        for where in ("answers", "inside"):
            own = {
                learner: value for t, p, learner, w, value in verdict["confusion"] if (t, p, w) == (task, plant, where)
            }
            if own:
                best = max(own, key=lambda one: -2.0 if own[one] is None else own[one])
                rows.append(
                    [task, plant, where]
                    + [Number(own.get(one), mark="best" if one == best else "", digits=2) for one in learners]
                )
    if not rows:
        return None
    return Table.build(["task", "planted", "part", *learners], rows, title=PLANTED, folded=True)


def _cells(source: ReportedRun, verdict: Document) -> Iterator[tuple[str, CellSpec]]:
    setting = EpisodeSpec.of_row(verdict["setting"])
    for name, cell in source.response_cells.items():
        assert cell.intervention is not None
        own = cell.episode.model.variant, cell.intervention.kind
        if own == (verdict["variant"], JUDGED) and cell.is_within(setting.setting):
            yield name, cell


def _shares(source: ReportedRun, verdict: Document, name: str) -> Chart | None:
    """How much of what a context does to each layer depends on the labels."""
    panels, rows = [], list[list[Entry]]()
    for task in _tasks(source, verdict):
        by_layer: dict[int, list[float]] = {}
        for one, cell in _cells(source, verdict):
            if cell.episode.task == task and cell.learning == IN_CONTEXT:
                table = source.table(one)
                table = table.filter(pc.equal(table["metric"], "learned_share_aou"))
                for row in table.to_pylist():
                    if row["layer"] is not None and math.isfinite(row["value"]):
                        by_layer.setdefault(row["layer"], []).append(row["value"])
        if not by_layer:
            continue
        layers = sorted(by_layer)
        learned = [min(1.0, max(0.0, float(np.mean(by_layer[layer])))) for layer in layers]
        panels.append(_area(layers, learned, task))
        rows += [[task, str(layer), Number(value)] for layer, value in zip(layers, learned, strict=True)]
    if not panels:
        return None
    return Chart(
        f"response-shares{'-' + name if name else ''}",
        "How much of it is learning?",
        "Green is the share of the context's effect on a layer's attention output that depends on which demonstration "
        "has which label. Grey is the rest, which would be there with any labels.",
        "In a layer that is all grey nothing is learned from the labels, and a likeness there says nothing.",
        tuple(panels),
        Table.build(["task", "layer", "learned_share_aou"], rows, folded=True),
        ("learned_share", "learned_share_aou"),
        named=True,
    )


def _area(layers: Sequence[int], learned: Sequence[float], task: str) -> Panel:
    line = [short(1 - value) for value in learned]

    def band(name: str, shade: str, low: Sequence[Any], high: Sequence[Any]) -> dict[str, Any]:
        return {
            "type": "scatter", "mode": "lines", "fill": "toself", "name": name, "opacity": 0.5, "hoverinfo": "skip",
            "x": [*layers, *reversed(layers)], "y": [*high, *reversed(list(low))],
            "line": {"color": shade, "width": 0}, "fillcolor": shade,
        }  # fmt: skip

    n = len(layers)
    traces = [band("recognised", "@grey", [0.0] * n, line), band("learned", "@green", line, [1.0] * n)]
    layout = {"xaxis": {"title": {"text": "layer"}}, "yaxis": {"title": {"text": "share"}, "range": [0, 1]}}
    return Panel(traces, layout, task, 220, task=task)


def _geometry(source: ReportedRun, verdict: Document, name: str) -> Chart | None:
    """Layers of ICL by layers of a learner: how alike they arrange the draws, whatever the directions."""
    found: list[Grid] = []
    reference: dict[int, tuple[np.ndarray, Any]] = {}
    for task in _tasks(source, verdict):
        grams: dict[LearnerSpec, dict[int, tuple[np.ndarray, Any]]] = {}
        for one, cell in _cells(source, verdict):
            if cell.episode.task == task and cell.learning.control is None:
                parts, levels = parts_of(source.run.responses(one))
                own = [part.products.draws for part in parts if part.reference == OWN]
                if own:
                    grams.setdefault(cell.learning, {})[cell.episode.seed] = np.stack(own), levels
        reference = grams.pop(IN_CONTEXT, {})
        for learning, seeds in grams.items():
            alike = [
                geometry_matrix(reference[seed][0], own, levels)
                for seed, (own, levels) in seeds.items()
                if seed in reference and reference[seed][1] == levels
            ]
            if alike:
                values, label = np.nanmean(alike, axis=0), learning.label
                down, across = (list(map(str, range(side))) for side in values.shape)
                titles = ("layer of ICL", f"layer of {label}")
                title = f"{task}: {learner_title(learning)}"
                found.append(Grid(title, values, (task, label), down, across, titles, task))
    size = len(next(iter(reference.values()))[1]) if reference else 12
    band = 1.96 / math.sqrt(size * (size - 1) / 2 * max(1, len(reference)))
    shell = Chart(
        f"response-geometry{'-' + name if name else ''}",
        "Any layer, any direction",
        "Every draw of the labels gives a response in each layer. For a layer of in-context learning and a layer of a "
        "learner: are the same pairs of draws close together in both? Shown is that correlation, mean over seeds.",
        f"Unrelated responses lie within ±{band:.2f} in 95 % of entries. Only agreement far beyond that, in the "
        "same layers, speaks for a relation.",
        metrics=("response_geometry",),
        folded=True,
    )
    return matrix(shell, found, ["task", "learner", "layer of ICL", "layer", "geometry"], diverging=True)


def _influence(source: ReportedRun) -> Chart | None:
    """What each demonstration taught each query: in-context learning and learners side by side."""
    found: list[Grid] = []
    cells = {n: c for n, c in source.response_cells.items() if c.intervention and c.intervention.kind == "flip-one"}
    first: dict[tuple[str, str, str], str] = {}  # the first seed of every model, task and learner
    for name, cell in sorted(cells.items(), key=lambda one: (one[1].episode.seed, one[1].role != "reference")):
        first.setdefault((cell.episode.model.name, cell.episode.task, cell.learning.label), name)
    for (model, task, label), name in first.items():
        table = source.run.queries(name)
        values = np.array(table["influence"].to_pylist(), float)[:MOST_QUERIES]
        queries = list(map(str, table["query"].to_pylist()))[:MOST_QUERIES]
        columns = [str(i + 1) for i in range(values.shape[1])]
        title = f"{task}: {label}, seed {cells[name].episode.seed}"
        found.append(Grid(title, values, (model, task, label), queries, columns, ("query", "demonstration"), task))
    shell = Chart(
        "response-influence",
        "What did each demonstration teach?",
        "The change of the right label's log-odds when one demonstration's label is flipped: a column a "
        "demonstration, a row a query.",
        "Two learners that learn alike have the same pattern, not only the same columns.",
        metrics=("response_influence",),
    )
    return matrix(shell, found, ["model", "task", "learner", "query", "demonstration", "influence"], diverging=True)
