"""Which learner is most like in-context learning on a task, and which others cannot be told from it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from dualscope.core.estimate import Estimate
from dualscope.core.rows import QueryColumn
from dualscope.core.spec import LearnerSpec
from dualscope.findings.evidence import Evidence, EvidenceKey
from dualscope.report.subject import Subject

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
