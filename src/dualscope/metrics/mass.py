"""Where the softmax weight of the read position goes, per head: the lambda of the split into contexts."""

from __future__ import annotations

from collections.abc import Iterator

from dualscope.core.statistics import SHARE
from dualscope.metrics.case import Case
from dualscope.metrics.metric import family
from dualscope.metrics.values import PerQuery, Values


def _masses(case: Case, names: frozenset[str]) -> Iterator[Values]:
    for name in names:
        yield PerQuery(name, case.trace.extras[name])


def _has_context(case: Case) -> bool:
    return not case.is_baseline and case.has_attention and not case.is_gradient


def _add(name: str, formula: str, about: str) -> None:
    family(_masses, lambda case: _has_context(case) and name in case.trace.extras, SHARE)(
        name, formula, about, wants=["mass"]
    )


_add(
    "demo_mass",
    "sum of softmax weights on the demonstrations",
    "share of attention that goes to the demonstrations",
)
_add("bos_mass", "softmax weight on BOS", "share of attention that rests on the first token")
