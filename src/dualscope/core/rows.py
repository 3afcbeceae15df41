"""Rows: one number each, with everything that says what it is a number of."""

from __future__ import annotations

from typing import NotRequired, TypedDict

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


class CellColumns(TypedDict):
    """Which cell a row belongs to; of a summary, which cells: all but their draws (seed, order, the weights' draw)."""

    model: str
    variant: Variant
    init_seed: NotRequired[int | None]
    dtype: Precision
    task: str
    seed: NotRequired[int]
    order: NotRequired[int]
    shots: int
    shots_used: NotRequired[int | None]
    learner: str
    control: Control | None
    role: Role
    family: Family | None
    lr: float | None
    options: str
    demo_labels: DemoLabels
    corrupt: Corrupt
    balanced: bool
    queries_from: str | None
    read_at: ReadAt
    chat: bool
    gd_demonstrations: GdDemonstrations
    gd_order: GdOrder
    subset: Subset
    intervention: str | None


class Row(CellColumns, MetricRow):
    """A row of a run."""


class SummaryRow(CellColumns):
    """A row of a summary: a metric over seeds and queries. The columns of single draws are not there."""

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


CELL_COLUMNS = tuple(CellColumns.__annotations__)
"""In the order of the files."""
COLUMNS = (*CELL_COLUMNS, *MetricRow.__annotations__)
OF_A_DRAW = ("init_seed", "seed", "order", "shots_used")
SUMMARY_KEYS = tuple(name for name in CELL_COLUMNS if name not in OF_A_DRAW)
SUMMARY_COLUMNS = (*SUMMARY_KEYS, *(name for name in SummaryRow.__annotations__ if name not in CELL_COLUMNS))
EXPERIMENT_COLUMNS = tuple(ExperimentRow.__annotations__)
