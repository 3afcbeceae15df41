"""The papers' figures beside these: what was reproduced, and by how much it differs."""

from __future__ import annotations

from collections.abc import Iterator

from dualscope.findings.summary import ALL_TASKS
from dualscope.report.charts.chart import Item, Listing, Note, Section
from dualscope.report.data import Data
from dualscope.report.published import PublishedFigure, publications
from dualscope.report.subject import Subject
from dualscope.report.table import Badge, Entry, Number, Table

UNCERTAIN = "(?)"
NONE = "the papers' figures: no task here is theirs (sst2, sst5, mr, subj, agnews, cb; the embedded ones are others)"


def section(data: Data) -> Section | None:
    if not data.subjects:
        return None
    known = publications()
    items: list[Item] = []
    compared = [entry for subject in data.subjects for entry in _compared(subject)]
    if compared:
        columns = ["model", "task", "learner", "metric", "published", "here", "difference", "in the interval", "source"]
        title = f"{known.label}, beside these runs"
        items.append(Table.build(columns, compared, title=title))
        models = {subject.model.partition("@")[0] for subject in data.subjects}
        if known.checkpoint not in models:
            items.append(
                Note(
                    f"None of these models is the papers' ({known.checkpoint}): a difference is a difference "
                    "between models, not a failed reproduction. The preset `rethinking` or `revisited` runs "
                    "the papers' protocol.",
                    "warning",
                )
            )
        items += _everything()
    about = f"{known.model}. Published figures are never part of this page's averages or verdict."
    return Section("published", "Published figures", tuple(items), about, folded=True, unmeasured="" if items else NONE)


def _compared(subject: Subject) -> Iterator[list[Entry]]:
    for figure in publications().figures:
        learner = figure.learner
        own = subject.get(figure.task, learner, figure.metric, figure.variant)
        if figure.task == ALL_TASKS or own is None:
            continue
        inside = Badge("–", "none")
        if own["low"] is not None and own["low"] == own["low"]:
            inside = Badge("yes", "yes") if own["low"] <= figure.value <= own["high"] else Badge("no", "no")
        head: list[Entry] = [subject.name, figure.task, _learner(figure), _metric(figure)]
        numbers = [
            Number(figure.value, digits=4),
            Number.of(own, digits=4),
            Number(own["value"] - figure.value, digits=4),
        ]
        yield [*head, *numbers, inside, publications().short[figure.source]]


def _learner(figure: PublishedFigure) -> str:
    return figure.learner if figure.variant == "trained" else f"{figure.learner}, {figure.variant}"


def _metric(figure: PublishedFigure) -> str:
    return f"{figure.metric} {UNCERTAIN}" if figure.uncertain else figure.metric


def _everything() -> Iterator[Item]:
    known = publications()
    rows: list[list[Entry]] = []
    for figure in known.figures:
        spread = "" if figure.std is None else f"sd {figure.std:g}, {figure.runs} runs"
        size = "" if figure.size == "1.3B" else figure.size
        numbers: list[Entry] = [Number(figure.value, digits=4), spread or size, known.short[figure.source]]
        rows.append([figure.task, _learner(figure), _metric(figure), *numbers])
    title = f"Every published figure that this page knows; with {UNCERTAIN}, what exactly was computed is not recorded"
    columns = ["task", "learner", "metric", "published", "over", "source"]
    yield Table.build(columns, rows, task=None, title=title, folded=True)
    lines = tuple((known.short[key], f"{known.sources[key]}. {known.notes.get(key, '')}") for key in known.sources)
    yield Listing("The sources", lines)
