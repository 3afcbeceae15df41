"""Rows: one number each, with all columns that say which cell, metric and layer it belongs to."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NotRequired, TypedDict, cast

import pyarrow as pa

from dualscope.core.canonical import canonical
from dualscope.core.spec import ZERO_SHOT, LearnerSpec
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


def metric_row(
    metric: str, value: float, reference: LearnerSpec | str | None = None, n: int = 1, **more: Any
) -> MetricRow:
    """A row of an aggregate without an interval; ``more`` is what it has beside: a layer, a head, a step, ends.

    >>> metric_row("sim_aou", 0.5, LearnerSpec("in-context"), 4, layer=2)["reference"]
    'in-context'
    """
    label = reference.label if isinstance(reference, LearnerSpec) else reference
    whole = {"metric": metric, "reference": label, "layer": None, "head": None, "step": None}
    return cast("MetricRow", whole | {"value": value, "low": math.nan, "high": math.nan, "n": n} | more)


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


# The columns of a cell's table of queries: what each one is a value of, kept beside it, not read out of its name.


_KEY = b"dualscope"


def column_name(metric: str, reference: str | None, own: str | None) -> str:
    """What people see: a reference that is not the cell's own is added to the metric's name.

    >>> column_name("alpha", "gd", "in-context"), column_name("sim_aou", "in-context", "in-context")
    ('alpha[gd]', 'sim_aou')
    """
    return metric if reference in (None, ZERO_SHOT.label, own) else f"{metric}[{reference}]"


@dataclass(frozen=True)
class QueryColumn:
    """A metric's values per query, or per query and layer."""

    metric: str
    reference: LearnerSpec | str | None = None  # None: the cell's own reference, or none at all
    layers: bool = False

    @classmethod
    def made(cls, metric: str, reference: LearnerSpec | str | None, own: LearnerSpec, layers: bool) -> QueryColumn:
        return cls(metric, None if reference in (ZERO_SHOT, own) else reference, layers)

    @property
    def name(self) -> str:
        label = self.reference.label if isinstance(self.reference, LearnerSpec) else self.reference
        return column_name(self.metric, label, None) + ("_layers" if self.layers else "")

    def field(self, kind: pa.DataType) -> pa.Field:
        """The column as Arrow has it, with its metric and reference in its metadata."""
        reference: Any = self.reference.facts if isinstance(self.reference, LearnerSpec) else self.reference
        said = canonical({"metric": self.metric, "reference": reference, "layers": self.layers})
        return pa.field(self.name, kind, metadata={_KEY: said.encode()})

    @classmethod
    def of(cls, field: pa.Field) -> QueryColumn | None:
        """What `field` wrote; None where the column is no metric's.

        >>> column = QueryColumn("sim_aou_to_null", LearnerSpec("null-context"))
        >>> QueryColumn.of(column.field(pa.float64())) == column, column.name
        (True, 'sim_aou_to_null[null-context]')
        """
        said = (field.metadata or {}).get(_KEY)
        return None if said is None else _query_column(said)


@lru_cache(maxsize=4096)  # the tables of a run say the same few, each of them again
def _query_column(said: bytes) -> QueryColumn:
    found = json.loads(said)
    reference = found["reference"]
    if isinstance(reference, dict):
        reference = LearnerSpec.from_facts(reference)
    return QueryColumn(found["metric"], reference, found["layers"])
