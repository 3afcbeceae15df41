"""Metrics: what a case of traces says about two learners, its controls and its statistics.

`statistics`, `evidence` and `verdict` need numpy alone, so they can be imported without loading torch; that is why the
names below are looked up when first used.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "Case": "case",
    "DEFAULT": "catalog",
    "METRICS": "catalog",
    "Measurement": "rows",
    "Metric": "metric",
    "expand": "catalog",
    "measure": "rows",
    "simple_metric": "metric",
}
__all__ = ["DEFAULT", "METRICS", "Case", "Measurement", "Metric", "expand", "measure", "simple_metric"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
