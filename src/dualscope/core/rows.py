"""Rows: one number each, with everything that says what it is a number of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from dualscope.core.spec import LearnerSpec
from dualscope.core.words import Control, Corrupt, DemoLabels, Family, Level, Role, Variant

SITTING = ("balanced", "read_at", "gd_demonstrations", "gd_order", "chat", "dtype", "subset")
"""Options in a row that are the sitting's, not the learner's."""


class MetricRow(TypedDict):
    """What a metric says."""

    metric: str
    reference: str | None
    layer: int | None
    head: int | None
    step: int | None
    value: float
    low: float
    high: float
    n: int
    level: NotRequired[Level | None]
    """Of an intervention's draws; None: all."""


class SummaryColumns(TypedDict):
    """Which cells a row of a summary is over: all but their draws (seed, order, the weights' draw)."""

    model: str
    variant: Variant
    task: str
    shots: int
    learner: str
    control: Control | None
    role: Role
    lr: float | None
    demo_labels: DemoLabels
    corrupt: Corrupt
    queries_from: str | None
    options: str
    intervention: str | None
    family: Family | None


class CellColumns(SummaryColumns):
    """Which cell a row belongs to."""

    init_seed: int | None
    seed: int
    order: int
    shots_used: int | None


class Row(CellColumns, MetricRow):
    """A row of a run."""


class SummaryRow(SummaryColumns):
    """A row of a summary: a metric over seeds and queries."""

    metric: str
    reference: str | None
    value: float
    low: float
    high: float
    seeds: int
    queries: int
    each: tuple[float, ...]  # every seed's value, in the order of the seeds


class ExperimentRow(TypedDict):
    """A row of a regression experiment. Those of one seed have no interval; those over seeds have no seed."""

    experiment: str
    panel: str
    series: str
    metric: str
    x_name: str
    x: float | None
    value: float
    low: float | None
    high: float | None
    seed: int | None
    n: int


CELL_COLUMNS = (
    *("model", "variant", "init_seed", "task", "seed", "order", "shots", "shots_used", "learner", "control"),
    *("role", "lr", "demo_labels", "corrupt", "queries_from", "options", "intervention", "family"),
)
"""In the order of the files, which stays as it is: files that were written before have it too."""
COLUMNS = (*CELL_COLUMNS, *MetricRow.__annotations__)
SUMMARY_KEYS = tuple(SummaryColumns.__annotations__)
SUMMARY_COLUMNS = tuple(SummaryRow.__annotations__)
EXPERIMENT_COLUMNS = tuple(ExperimentRow.__annotations__)


def learning_of(columns: Mapping[str, Any]) -> LearnerSpec:
    """The learner that a row is of.

    >>> options = '{"dtype":"tf32","readout":"attention"}'
    >>> learning_of({"learner": "lcgd", "control": None, "lr": 0.1, "options": options})
    LearnerSpec(name='lcgd', control=None, options='{"readout":"attention"}', rate=0.1)
    """
    options = json.loads(columns["options"] or "{}")
    own = {key: value for key, value in options.items() if key not in SITTING}
    return LearnerSpec.of(columns["learner"], own, columns["control"], columns.get("lr"))


def sitting_options(columns: Mapping[str, Any]) -> str:
    """The options of a row that are its sitting's, as JSON."""
    options = json.loads(columns["options"] or "{}")
    return json.dumps({key: options[key] for key in SITTING if key in options}, sort_keys=True)
