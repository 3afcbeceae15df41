"""Who changed which prediction, and to what: ten counts that add up to the number of queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualscope.core.statistics import SIZE
from dualscope.metrics.case import Case
from dualscope.metrics.metric import Measure, metric
from dualscope.metrics.prediction import changes
from dualscope.metrics.values import PerQuery, Values

if TYPE_CHECKING:
    from torch import Tensor

PARTITION = {
    "partition_same_right": "changed by both to the same label, which is right",
    "partition_same_wrong": "changed by both to the same label, which is wrong",
    "partition_different_icl_right": "changed by both to different labels, ICL's right",
    "partition_different_gd_right": "changed by both to different labels, GD's right",
    "partition_different_wrong": "changed by both to different labels, both wrong",
    "partition_only_icl_right": "changed by ICL alone, to the right label",
    "partition_only_icl_wrong": "changed by ICL alone, to a wrong label",
    "partition_only_gd_right": "changed by GD alone, to the right label",
    "partition_only_gd_wrong": "changed by GD alone, to a wrong label",
    "partition_neither": "changed by neither",
}


def partition(case: Case) -> dict[str, Tensor]:
    """Members of each part: [queries], boolean; every query is in exactly one."""
    icl, gd = changes(case)
    right_icl, right_gd = case.reference.correct, case.trace.correct
    same = icl & gd & (case.reference.predictions == case.trace.predictions)
    different, only_icl, only_gd = icl & gd & ~same, icl & ~gd, gd & ~icl
    parts = [
        same & right_icl,
        same & ~right_icl,
        different & right_icl,
        different & right_gd,
        different & ~right_icl & ~right_gd,
        only_icl & right_icl,
        only_icl & ~right_icl,
        only_gd & right_gd,
        only_gd & ~right_gd,
        ~icl & ~gd,
    ]
    return dict(zip(PARTITION, parts, strict=True))


def _count(name: str) -> Measure:
    def count(case: Case) -> Values:
        members = case.shared(partition)[name]
        return PerQuery(name, members, case.against.learning, scale=float(len(members)))

    return count


for _name, _about in PARTITION.items():
    metric(
        _name,
        "number of queries",
        _about,
        applies=lambda case: case.is_pair,
        within=SIZE,
        by_subset=False,
        needs_gold=_name != "partition_neither",
    )(_count(_name))
