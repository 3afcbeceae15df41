"""The papers' figures beside these: what was reproduced, and by how much it differs."""

from __future__ import annotations

from collections.abc import Iterator

from dualscope.core.errors import InputError, suggest
from dualscope.findings.summary import ALL_TASKS
from dualscope.report.charts.chart import Item, Listing, Note, Section
from dualscope.report.published import PublishedFigure, publications
from dualscope.report.report_data import Data
from dualscope.report.subject import LabelledRow, Subject
from dualscope.report.table import Badge, Entry, Number, Table

UNCERTAIN = "(?)"
AVERAGE = "average"
"""Of a published table: over all of its tasks."""
RANDOM = ("gd", "sim_aou_random_code")
"""A random update's likeness is a metric here, of the learner that it stands for: as the published code has it."""
NONE = "the papers' figures: no task here is theirs (sst2, sst5, mr, subj, agnews, cb; the embedded ones are others)"


def section(data: Data) -> Section:
    known = publications()
    items: list[Item] = []
    compared = [entry for subject in data.subjects for entry in _compared(subject)]
    if compared:
        items += tables(data)
        columns = ["model", "task", "learner", "metric", "published", "here", "difference", "in the interval", "source"]
        title = f"{known.label}, beside these runs"
        items.append(Table.build(columns, compared, title=f"{title}, one by one", folded=True))
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


def tables(data: Data, only: str | None = None) -> list[Table]:
    """Each published table as its paper has it, tasks side by side, with what these runs found below every line.

    Tables of which no run has a figure are left out, but for the one that is asked for (``only``).
    """
    known = publications()
    if only is not None and only not in known.sources:
        raise InputError(f"--published {only}: {suggest(only, known.sources)}")
    return [
        table
        for source in known.sources
        if only in (None, source) and (table := _as_published(data, source, empty=only is not None)) is not None
    ]


def _as_published(data: Data, source: str, empty: bool) -> Table | None:
    known = publications()
    figures = [figure for figure in known.figures if figure.source == source and figure.size == "1.3B"]
    tasks = list(dict.fromkeys(figure.task for figure in figures))
    lines: dict[str, dict[str, PublishedFigure]] = {}
    for figure in figures:
        lines.setdefault(f"{_metric(figure)}, {_learner(figure)}", {})[figure.task] = figure
    rows: list[list[Entry]] = []
    found = False
    for name, by_task in lines.items():
        values = [Number(by_task[task].value if task in by_task else None, digits=4) for task in tasks]
        rows.append([name, "published", *values])
        for subject in data.subjects:
            own = [_own(subject, by_task[task]) if task in by_task else None for task in tasks]
            found = found or any(row is not None for row in own)
            rows.append(["", subject.name, *(Number.of(row, digits=4) for row in own)])
    if not (found or empty):
        return None
    title = f"{known.short[source]}: {known.label}, and here"
    return Table.build(["", "model", *tasks], rows, task=None, title=title)


def _own(subject: Subject, figure: PublishedFigure) -> LabelledRow | None:
    learner, metric = RANDOM if figure.learner == "random" else (figure.learner, figure.metric)
    if figure.task != AVERAGE:
        return subject.get(figure.task, learner, metric, figure.variant)
    averaged = {one.task for one in publications().figures if one.source == figure.source} - {AVERAGE}
    # A mean over other tasks is of something else.
    return subject.get(ALL_TASKS, learner, metric, figure.variant) if averaged == set(subject.tasks) else None


def _compared(subject: Subject) -> Iterator[list[Entry]]:
    for figure in publications().figures:
        own = _own(subject, figure)
        if figure.task in (ALL_TASKS, AVERAGE) or own is None:
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
