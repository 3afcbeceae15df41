"""The columns of a cell's table of queries: what each one is a value of, kept beside it, not read out of its name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dualscope.core.canonical import canonical
from dualscope.core.spec import ZERO_SHOT, LearnerSpec

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
        if said is None:
            return None
        found = json.loads(said)
        reference = found["reference"]
        if isinstance(reference, dict):
            reference = LearnerSpec.from_facts(reference)
        return cls(found["metric"], reference, found["layers"])
