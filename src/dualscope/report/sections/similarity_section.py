"""How alike the changes are: attention outputs and attention maps."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from dualscope.core.estimate import Estimate
from dualscope.core.rows import QueryColumn
from dualscope.core.spec import LearnerSpec
from dualscope.findings.answer import metric_title
from dualscope.findings.evidence import Evidence, EvidenceKey
from dualscope.report.charts.chart import Chart, Item, Section, Tabs
from dualscope.report.charts.chart_makers import dots
from dualscope.report.charts.dots import Series, published_of, series_of
from dualscope.report.report_data import Data
from dualscope.report.subject import Subject
from dualscope.report.table import Entry, Number

METRICS = {
    "sim_aou": "How alike the two changes of the attention output are: the primary measure.",
    "sim_aou_norm": "The older measure: attention outputs scaled to unit norm first. It is biased: "
    "independent random updates score above 0.",
    "sim_aou_centered": "What is left of sim_aou without the drift that all queries share.",
    "sim_am": "How alike the attention maps are after learning; to be read beside sim_am_zero_shot, which "
    "needs no fine-tuning.",
    "sim_am_delta": "How alike the two changes of the attention maps are.",
}


def section(data: Data) -> Section:
    marks = {id(subject): Marks(subject) for subject in data.subjects}
    made = [(name, chart) for name in METRICS if (chart := _chart(data, name, marks)) is not None]
    items: list[Item] = [Tabs("similarity-tabs", "Likeness of", tuple(made))] if made else []
    about = "One number for each task and learner: the mean over layers and queries, with the baselines beside it."
    missing = "" if made else "likeness: no gradient learner was run"
    return Section("similarity", "Likeness of the changes", tuple(items), about, folded=True, unmeasured=missing)


def _series(subject: Subject, metric: str) -> list[Series]:
    found = series_of(subject, metric, subject.gradient_learners, subject.variants, ("in-context",))
    if metric == "sim_am":
        found += series_of(subject, "sim_am_zero_shot", ["in-context"], ["trained"], ("zero-shot",))
        found = [
            Series("before fine-tuning", s.colour, "square-open", s.rows) if s.name == "in-context" else s
            for s in found
        ]
    if metric == "sim_aou":
        found += [
            Series("random direction", "@grey", "square-open", s.rows)
            for s in series_of(subject, "sim_aou_random", subject.gradient_learners[:1], ["trained"])
        ]
    found += published_of(subject, metric, subject.gradient_learners)
    return found


def _chart(data: Data, metric: str, marks: dict[int, Marks]) -> Chart | None:
    shell = Chart(
        f"similarity-{metric}",
        f"{metric_title(metric)} by task",
        f"{METRICS[metric]} Filled: the trained model. Hollow: the same learner on untrained weights, and on "
        "trained embeddings with all else untrained. Bars: 95 % intervals over seeds and queries.",
        "A filled dot says something only to the right of the hollow ones of its colour. In the table, the "
        "best learner of a task is marked, and as a tie where the paired interval of the difference "
        "contains 0.",
        metrics=(metric, *(("sim_am_zero_shot",) if metric == "sim_am" else ())),
    )
    variants = list(dict.fromkeys(v for subject in data.subjects for v in subject.variants))
    rows: list[list[Entry]] = []
    for subject in data.subjects:
        for task in [*subject.tasks, "all tasks"]:
            best = marks[id(subject)].of(task, metric) if task != "all tasks" else {}
            for learner in subject.gradient_learners:
                found = {v: subject.get(task, learner, metric, v, ("in-context",)) for v in variants}
                if any(found.values()):
                    cells = [Number.of(found[v], best.get(learner, "") if v == "trained" else "") for v in variants]
                    rows.append([subject.name, task, learner, *cells])
    return dots(
        shell, data, metric, lambda subject: _series(subject, metric), ["model", "task", "learner", *variants], rows
    )


BEST, TIE = "best", "tie"


class Marks:
    """Compares the gradient learners of a subject on the trained model, query by query."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def _evidence(self) -> Evidence:
        found, wanted = Evidence(), set(self.subject.gradient_learners)
        for name, cell in self.subject.cells.items():
            label = cell.learning.label
            if cell.episode.model.variant != "trained" or label not in wanted:
                continue
            table = self.subject.source.run.queries(name)
            queries = table["query"].to_pylist()
            for place, field in enumerate(table.schema):
                column = QueryColumn.of(field)
                if column is not None and column.reference is None and not column.layers:
                    key = EvidenceKey(cell.episode.task, "trained", self._identity(label), column.metric)
                    found.add(key, cell.episode.seed, queries, table.column(place).to_pylist())
        return found

    def _identity(self, label: str) -> LearnerSpec:
        """One a label: charts hold the rate fixed where a study varies it."""
        return replace(self.subject.learnings[label], lr=None)

    def of(self, task: str, metric: str) -> dict[str, str]:
        """`best` for one learner; `tie` for it and for those whose paired difference from it may be 0.

        Empty where fewer than two learners are there to be compared.
        """
        means = {
            learner: row["value"]
            for learner in self.subject.gradient_learners
            if (row := self.subject.get(task, learner, metric, references=("in-context",))) is not None
            and math.isfinite(row["value"])
        }
        if len(means) < 2:
            return {}
        best = max(means, key=lambda learner: means[learner])
        ties = [learner for learner in means if learner != best and self._is_tie(task, metric, best, learner)]
        return {best: TIE if ties else BEST, **dict.fromkeys(ties, TIE)}

    def _is_tie(self, task: str, metric: str, best: str, other: str) -> bool:
        left, right = self._evidence.pair(
            *(EvidenceKey(task, "trained", self._identity(label), metric) for label in (best, other))
        )
        if not (np.isfinite(left) & np.isfinite(right)).any():
            return True  # nothing to tell them apart by
        return not Estimate.of(left - right).interval.excludes_zero
