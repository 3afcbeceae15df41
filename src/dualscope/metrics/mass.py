"""Where the softmax weight of the read position goes, per head: the lambda of the split into contexts."""

from __future__ import annotations

from dualscope.core.statistics import SHARE
from dualscope.metrics.case import Case
from dualscope.metrics.metric import Applies, metric
from dualscope.metrics.values import PerQuery, Values


def _recorded(name: str) -> Applies:
    def applies(case: Case) -> bool:
        has_context = not case.is_baseline and case.has_attention and not case.is_gradient
        return has_context and name in case.trace.extras

    return applies


@metric(
    "demo_mass",
    "sum of softmax weights on the demonstrations",
    "share of attention that goes to the demonstrations",
    applies=_recorded("demo_mass"),
    within=SHARE,
    wants=["mass"],
)
def demo_mass(case: Case) -> Values:
    return PerQuery("demo_mass", case.trace.extras["demo_mass"])


@metric(
    "bos_mass",
    "softmax weight on BOS",
    "share of attention that rests on the first token",
    applies=_recorded("bos_mass"),
    within=SHARE,
    wants=["mass"],
)
def bos_mass(case: Case) -> Values:
    return PerQuery("bos_mass", case.trace.extras["bos_mass"])
