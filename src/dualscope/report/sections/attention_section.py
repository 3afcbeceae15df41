"""Attention: do both learners attend to the same demonstration tokens? And, where a run has rows of single heads, which
heads repeat what came before, and which carry the task?
"""

from __future__ import annotations

import math

from dualscope.report.charts.chart import Chart, Item, Panel, Section, Tabs, short, slug
from dualscope.report.charts.chart_makers import dots, heat_map, rows_of
from dualscope.report.charts.curves import Reach, combine, mean
from dualscope.report.charts.dots import Series, series_of
from dualscope.report.published import publications
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number, Table

NULLS = {
    "kendall_random": ("random scores", "line-ns-open"),
    "kendall_shift": ("shifted scores", "square-open"),
    "kendall_recency": ("recency alone", "triangle-up-open"),
}
DUAL = "diamond-open"
NAMES = (
    "kendall",
    "kendall_dual",
    "kendall_raw",
    "kendall_demonstrations",
    "kendall_recall",
    "kendall_recall_chance",
    *NULLS,
)


def attended_demonstrations(data: Data) -> Section:
    items: list[Item] = [chart for chart in [_kendall_chart(data)] if chart is not None]
    about = "ICL attends to demonstration tokens; the dual of a gradient step does too. Do they rank them alike?"
    missing = "" if items else "Kendall's tau (`metrics: [default, kendall]` in a study)"
    return Section("kendall", "Attention to demonstrations", tuple(items), about, folded=True, unmeasured=missing)


def _series(subject: Subject) -> list[Series]:
    learners = subject.gradient_learners
    found = series_of(subject, "kendall", learners, ["trained"], ("in-context",))
    found += [
        Series(f"{s.name}, exact dual's keys", s.colour, DUAL, s.rows)
        for s in series_of(subject, "kendall_dual", learners, ["trained"], ("in-context",))
    ]
    for metric, (name, symbol) in NULLS.items():
        first = series_of(subject, metric, learners[:1], ["trained"], ("in-context",))
        found += [Series(name, "@grey", symbol, s.rows) for s in first]
    return found


def _kendall_chart(data: Data) -> Chart | None:
    known = {f.size: f.value for f in publications().figures if f.metric == "kendall"}
    said = ", ".join(f"{value:g} for {size} parameters" for size, value in known.items())
    shell = Chart(
        "kendall-by-task",
        "Kendall's tau by task",
        "The rank correlation, over demonstration tokens, of ICL's attention scores with the scores that the "
        "fine-tuned model's update gives the same tokens; mean over layers and the first queries.",
        "0 is none in common; a learner says something only to the right of the grey marks. "
        f"Published: {said} (Dai et al. 2023, mean over their tasks).",
        metrics=("kendall", "kendall_dual"),
    )
    columns = ["model", "task", "learner", "variant", "metric", "value"]
    return dots(
        shell, data, "tau-b", _series, columns, rows_of(data, ["task", "label", "variant", "metric"], metric=NAMES)
    )


METRICS = {
    "indirect_effect": (
        "Carries the task",
        "How much likelier the right label becomes when the mean output that a head has after the demonstrations takes "
        "the place of its output after demonstrations with shuffled labels; mean over spare examples and seeds.",
        "A few bright heads carry the task, and their outputs are what a function vector is made of. Where the effect "
        "is spread over all heads, no few of them do.",
    ),
    "induction_score": (
        "Repeats what came before",
        "The attention that a head pays, at a token that was there before, to what followed it then; on random tokens, "
        "of which some are repeated; mean over sequences and seeds.",
        "Bright heads copy by looking up the same token (induction heads). Compare with the other figure: a head that "
        "carries the task need not be one of them.",
    ),
}
ALIKE = (
    "Changes as under the learner",
    "The cosine between the changes of a head's attention scores in context and under the learner, mean over queries "
    "and seeds: blue heads change alike, orange ones the opposite way.",
    "If in-context learning were this learner, the heads that carry the task would be blue here.",
)
SIGNED = ("indirect_effect", "sim_am_delta")  # 0 is the middle of their colours
Heads = dict[tuple[int, int], Reach]
"""By layer and head: the mean over seeds and its interval."""


def single_heads(data: Data) -> Section | None:
    made = [(words[0], chart) for name, words in METRICS.items() if (chart := _chart(data, name, words)) is not None]
    learners = dict.fromkeys(name for subject in data.subjects for name in subject.gradient_learners)
    for learner in learners:
        words = (f"Changes as under {learner}", *ALIKE[1:])
        if (chart := _chart(data, "sim_am_delta", words, learner)) is not None:
            made.append((words[0], chart))
    if not made:
        return None
    about = "What single heads do in in-context learning, and whether they change as under a learner."
    return Section("heads", "Single heads", (Tabs("heads-tabs", "A head", tuple(made)),), about)


def _chart(data: Data, metric: str, words: tuple[str, str, str], learner: str | None = None) -> Chart | None:
    panels: list[Panel] = []
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in subject.tasks:
            for variant in subject.variants:
                found = heads_of(subject, task, variant, metric, learner)
                if found and variant == subject.variants[0]:  # the others are in the table
                    title = data.title(subject, task)
                    panels.append(_panel(found, title, task, metric in SIGNED))
                rows += [
                    [subject.name, task, variant, str(layer), str(head), Number(*reach)]
                    for (layer, head), reach in sorted(found.items(), key=lambda item: -item[1][0])
                ]
    if not panels:
        return None
    title, shows, reads = words
    columns = ["model", "task", "variant", "layer", "head", metric]
    return Chart(
        "-".join(filter(None, ("heads", metric, learner and slug(learner)))),
        title,
        shows,
        reads,
        tuple(panels),
        Table.build(columns, rows),
        (metric,),
    )


def heads_of(subject: Subject, task: str, variant: str, metric: str, learner: str | None = None) -> Heads:
    """Of in-context learning, or a learner beside it, in the setting that charts show; several cells of a seed are one
    seed.
    """
    from dualscope.metrics import bounds_of

    found: dict[tuple[int, int], dict[int, list[Reach]]] = {}
    for name, cell in subject.cells.items():
        own = cell.role == "reference" if learner is None else cell.learning.label == learner
        if own and (cell.episode.task, cell.episode.model.variant) == (task, variant):
            for row in subject.source.heads(name, metric):
                reach = [math.nan if end is None else end for end in (row["value"], row["low"], row["high"])]
                layer, head = row["layer"], row["head"]
                assert layer is not None
                assert head is not None
                of = found.setdefault((layer, head), {})
                of.setdefault(cell.episode.seed, []).append((reach[0], reach[1], reach[2]))
    bounds = bounds_of(metric)
    return {head: combine([mean(cells) for cells in seeds.values()], bounds) for head, seeds in found.items()}


def _panel(found: Heads, title: str, task: str, signed: bool) -> Panel:
    layers, heads = (range(1 + max(place)) for place in zip(*found, strict=True))
    grid = [[short(found[layer, head][0]) for head in heads] for layer in layers]
    return heat_map(grid, list(map(str, layers)), list(map(str, heads)), "layer", "head", title, task, signed)
