"""Rows: one number each, with everything that says what it is a number of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from dualscope.core.spec import LearnerSpec
from dualscope.core.words import (
    Control,
    Corrupt,
    DemoLabels,
    Family,
    GdDemonstrations,
    GdOrder,
    Level,
    Precision,
    ReadAt,
    Role,
    Subset,
    Variant,
)


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
    dtype: Precision
    read_at: ReadAt
    chat: bool
    balanced: bool
    gd_demonstrations: GdDemonstrations
    gd_order: GdOrder
    subset: Subset
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
    *("model", "variant", "init_seed", "dtype", "task", "seed", "order", "shots", "shots_used", "learner", "control"),
    *("role", "family", "lr", "options", "demo_labels", "corrupt", "balanced", "queries_from", "read_at", "chat"),
    *("gd_demonstrations", "gd_order", "subset", "intervention"),
)
"""In the order of the files."""
COLUMNS = (*CELL_COLUMNS, *MetricRow.__annotations__)
SUMMARY_KEYS = tuple(SummaryColumns.__annotations__)
SUMMARY_COLUMNS = tuple(SummaryRow.__annotations__)
EXPERIMENT_COLUMNS = tuple(ExperimentRow.__annotations__)


def learning_of(columns: Mapping[str, Any]) -> LearnerSpec:
    """The learner that a row is of.

    >>> learning_of({"learner": "lcgd/redraw", "control": "redraw", "lr": 0.1, "options": '{"draw":2}'})
    LearnerSpec(name='lcgd', control='redraw', options='{"draw":2}', lr=0.1)
    """
    control = columns["control"]
    name = columns["learner"] if control is None else columns["learner"].removesuffix(f"/{control}")
    return LearnerSpec(name, control, columns["options"] or "{}", columns.get("lr"))
