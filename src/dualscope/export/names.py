"""What trackers have in common: which names they accept, and that what shares a step is logged together."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dualscope.core.query_columns import column_name

Curve = tuple[tuple[int, float], ...]
"""(step, value), in order."""


def metric_name(metric: str, reference: str | None, own: str | None) -> str:
    """A metric's name, with its reference where that is another one than the cell's own.

    >>> metric_name("alpha", "gd[epochs=3]", "in-context"), metric_name("sim_aou", "in-context", "in-context")
    ('alpha_gd_epochs_3', 'sim_aou')
    """
    name = column_name(metric, reference, own)
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).rstrip("_")


def project(name: str) -> str:
    """A project's name.

    >>> project("runs/my study: 1")
    'runs-my-study-1'
    """
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:100] or "dualscope"


def by_step(curves: Mapping[str, Curve]) -> dict[int, dict[str, float]]:
    """Curves by step.

    >>> by_step({"a": ((0, 0.1), (1, 0.2)), "b": ((1, 0.3),)})
    {0: {'a': 0.1}, 1: {'a': 0.2, 'b': 0.3}}
    """
    found: dict[int, dict[str, float]] = {}
    for name, curve in curves.items():
        for step, value in curve:
            found.setdefault(step, {})[name] = value
    return dict(sorted(found.items()))
