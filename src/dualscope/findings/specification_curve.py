"""Does a likeness stand above its controls however it is computed? A curve over specifications. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dualscope.core.rows import SummaryRow
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import CONTROL_ROLES, PAPERS, SPECIFICATIONS, Specification
from dualscope.findings.summary import ALL_TASKS

METRIC = "sim_aou_specified"


@dataclass(frozen=True)
class SpecificationPoint:
    """One specification: the learner's value, and what its controls have."""

    specification: Specification
    own: SummaryRow
    controls: dict[str, SummaryRow]

    @property
    def strongest(self) -> tuple[str, SummaryRow] | None:
        """The control that is most like in-context learning."""
        return max(self.controls.items(), key=lambda pair: pair[1]["value"], default=None)

    @property
    def is_above(self) -> bool:
        return self.strongest is not None and self.own["value"] > self.strongest[1]["value"]


@dataclass(frozen=True)
class SpecificationCurve:
    """A learner on a task, by its value from the least to the most."""

    task: str
    learner: str
    points: tuple[SpecificationPoint, ...]

    def words(self) -> str:
        """In how many specifications the learner is above all its controls, and whether the papers' is one."""
        compared = [point for point in self.points if point.controls]
        low, high = self.points[0].own["value"], self.points[-1].own["value"]
        said = f"{self.task}, {self.learner}: {low:.2f} to {high:.2f} over {len(self.points)} specifications"
        if not compared:
            return f"{said}; no control was measured beside it."
        above = sum(point.is_above for point in compared)
        papers = [point for point in compared if point.specification == PAPERS]
        own = f"; the papers' is {'one' if papers[0].is_above else 'none'} of them" if papers and above else ""
        return f"{said}; above every control in {above} of {len(compared)}{own}."


def curves(rows: Iterable[SummaryRow]) -> list[SpecificationCurve]:
    """Of every task and hypothesis, from the summary rows of one model and setting."""
    values: dict[str, dict[tuple[str, LearnerSpec], dict[str, SummaryRow]]] = {}
    roles: dict[LearnerSpec, str] = {}
    for row in rows:
        known = row["metric"] == METRIC and row["reference"] in SPECIFICATIONS and math.isfinite(row["value"])
        if known and row["task"] != ALL_TASKS:
            learning = LearnerSpec.of_row(row)
            key = (str(row["variant"]), learning)
            values.setdefault(str(row["task"]), {}).setdefault(key, {})[str(row["reference"])] = row
            roles[learning] = str(row["role"])
    found = []
    for task, own in values.items():
        labels = Counter(learning.label for variant, learning in own if variant == "trained")
        for (variant, learning), by_name in own.items():
            if variant == "trained" and roles[learning] == "hypothesis":
                beside = dict(_controls(learning, own, roles))
                points = [
                    SpecificationPoint(
                        SPECIFICATIONS[name],
                        row,
                        {control: rows[name] for control, rows in beside.items() if name in rows},
                    )
                    for name, row in by_name.items()
                ]
                points.sort(key=lambda point: point.own["value"])
                rate = f" lr={learning.lr:g}" if labels[learning.label] > 1 else ""  # it was run at several
                found.append(SpecificationCurve(task, learning.label + rate, tuple(points)))
    return found


def _controls(
    learning: LearnerSpec, own: dict[tuple[str, LearnerSpec], dict[str, SummaryRow]], roles: dict[LearnerSpec, str]
) -> Iterable[tuple[str, dict[str, SummaryRow]]]:
    """The learner on untrained weights, under its own null controls, and the nulls themselves."""
    for (variant, who), rows in own.items():
        if variant == "untrained" and who == learning:
            yield "untrained", rows
        if variant == "trained" and who.control is not None and CONTROL_ROLES[who.control] == "null":
            if who == learning.under(who.control):
                yield who.control, rows
        elif variant == "trained" and roles[who] == "null":
            yield who.label, rows
