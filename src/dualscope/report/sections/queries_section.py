"""The queries themselves: what was asked, what each learner said, and where they disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dualscope.core.errors import InputError
from dualscope.report.charts.chart import Browser, Item, Note, Section
from dualscope.report.report_data import Data
from dualscope.report.sections.accuracy_section import shown
from dualscope.report.subject import Subject
from dualscope.studies.run_folder.storage import Texts, stored_texts

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 30_000
"""Queries, over all models, tasks and seeds of a page: a page is opened whole."""


def section(data: Data) -> Section:
    texts: dict[tuple[str, ...], int] = {}
    sets: list[dict[str, Any]] = []
    told, left = 0, 0
    for subject in data.subjects:
        try:
            known = stored_texts(subject.source.run)
        except InputError:
            known = []
        for (task, seed), cells in sorted(_episodes(subject).items()):
            found = _set(subject, task, seed, cells, known, texts)
            if found is None:
                continue
            if told + len(found["gold"]) > MOST:
                left += 1
                continue
            told += len(found["gold"])
            sets.append(found)
    if not sets:
        return Section("queries", "Query by query", (), unmeasured="the predictions of single queries")
    items: list[Item] = [Browser(tuple(sets), tuple(texts))]
    if not any(any(one) for one in texts):
        items.append(Note("The run kept no texts (`--no-texts`, or an earlier version): queries show their ids."))
    if left:
        items.append(Note(f"{left} further seeds are in the run, not on this page: it holds {MOST:,} queries."))
    about = "What was asked, the right label, and each learner's answer with its probabilities, on the trained model."
    return Section("queries", "Query by query", tuple(items), about, folded=True)


def _episodes(subject: Subject) -> dict[tuple[str, int], dict[str, str]]:
    """The ids of the trained model's cells by task and seed, then by learner; the first order of each."""
    wanted = shown(subject)
    found: dict[tuple[str, int], dict[str, str]] = {}
    for name, cell in sorted(subject.cells.items(), key=lambda one: one[1].episode.order):
        episode, label = cell.episode, cell.learning.label
        if episode.model.variant == "trained" and label in wanted:
            found.setdefault((episode.task, episode.seed), {}).setdefault(label, name)
    return found


def _set(
    subject: Subject, task: str, seed: int, cells: dict[str, str], known: list[Texts], texts: dict[tuple[str, ...], int]
) -> dict[str, Any] | None:
    """One episode as the page reads it: texts by their place, labels as numbers, probabilities in thousandths."""
    if "in-context" not in cells:
        return None
    tables = {label: _answers(subject, cells[label]) for label in shown(subject) if label in cells}
    first = tables["in-context"]
    if first is None:
        return None
    ids, gold = first["query"].to_pylist(), first["label"].to_pylist()
    own = next((t for t in known if t.task == task and ids and ids[0] in t.by_query), None)
    written = tuple(own.by_query.get(i, "") for i in ids) if own else ("",) * len(ids)
    learners = [
        {"name": label, "prediction": table["prediction"].to_pylist(), "chances": _chances(table)}
        for label, table in tables.items()
        if table is not None and table["query"].to_pylist() == ids
    ]
    classes = max([*gold, *(p for one in learners for p in one["prediction"])], default=0) + 1
    return {
        "model": subject.name,
        "task": task,
        "seed": seed,
        "labels": list(own.labels) if own else [f"class {i}" for i in range(classes)],
        "ids": ids,
        "texts": texts.setdefault(written, len(texts)),
        "gold": gold,
        "learners": learners,
    }


def _answers(subject: Subject, cell: str) -> pa.Table | None:
    table = subject.source.run.queries(cell)
    return table if {"prediction", "label"} <= set(table.column_names) else None


def _chances(table: pa.Table) -> list[int]:
    """[queries x classes], in thousandths: the softmax over classes of the labels' scores; empty where not kept."""
    if "label_logprobs" not in table.column_names:
        return []
    scores = np.array(table["label_logprobs"].to_pylist(), float)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return [int(v) for v in np.rint(1000 * raised / raised.sum(-1, keepdims=True)).ravel()]
