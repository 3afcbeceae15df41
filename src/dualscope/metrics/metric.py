"""What a metric is, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dualscope.core.registry import Registry
from dualscope.core.statistics import ANYWHERE, Bounds
from dualscope.metrics.case import Case, PerQuery, Values

Compute = Callable[[Case, frozenset[str]], Iterable[Values]]
Applies = Callable[[Case], bool]
OfCase = Callable[[Case], Tensor]
Measure = Callable[[Case], "Values | Iterable[Values]"]


@dataclass(frozen=True)
class Metric:
    """A named number. `compute` may serve a family of names, so that what they share is computed once."""

    name: str
    about: str  # one line
    formula: str
    compute: Compute
    applies: Applies
    default: bool = True  # else on request
    wants: frozenset[str] = frozenset()  # what the traces or the log must hold besides the usual
    by_subset: bool = True  # else over all queries always: on a subset by prediction it would be trivial
    written_as: Callable[..., Any] | None = None  # the function that a person wrote, where `compute` wraps it
    reads_twice: bool = False  # needs a few queries in another order of summation, which is another learning
    within: Bounds = ANYWHERE
    """Between what its numbers lie by their definition: intervals are cut there."""
    title: str = ""
    """What charts and tables call it; its name where nothing is said."""
    needs_gold: bool = False
    """It asks whether an answer is right: nothing for queries without a label."""
    per_head: bool = False
    """Of single heads alone, and among the default ones where rows of heads are asked for."""

    @property
    def source(self) -> Callable[..., Any]:
        """Where the metric comes from: its module tells a plugin's metric from ours."""
        return self.written_as or self.compute


METRICS: Registry[Metric] = Registry("metric")
"""Every metric by its name; `dualscope.metrics.simple_metric` adds one.

>>> from dualscope import METRICS
>>> METRICS["sim_aou"].formula
'cos(c.attn_out - z.attn_out, g.attn_out - z.attn_out)'
"""


def always(_case: Case) -> bool:
    return True


def metric(
    name: str,
    formula: str,
    about: str,
    *,
    applies: Applies = always,
    within: Bounds = ANYWHERE,
    by_subset: bool = True,
    default: bool = True,
    wants: Iterable[str] = (),
    title: str = "",
    needs_gold: bool = False,
    per_head: bool = False,
) -> Callable[[Measure], Measure]:
    """Registers a function of a case, which returns the metric's values, as one metric.

    What several of them need is computed once a case: ``case.shared(work)``.
    """

    def register(function: Measure) -> Measure:
        def compute(case: Case, _names: frozenset[str]) -> Iterable[Values]:
            found = function(case)
            return [found] if isinstance(found, Values) else found

        METRICS.add(
            name,
            Metric(
                name,
                about,
                formula,
                compute,
                applies,
                default,
                frozenset(wants),
                by_subset,
                written_as=function,
                within=within,
                title=title,
                needs_gold=needs_gold,
                per_head=per_head,
            ),
        )
        return function

    return register


def family(
    compute: Compute, applies: Applies, within: Bounds = ANYWHERE, by_subset: bool = True, reads_twice: bool = False
) -> Callable[..., Metric]:
    """Registers the metrics that one function computes: ``add(name, formula, about, default=True)``."""

    def add(
        name: str,
        formula: str,
        about: str,
        default: bool = True,
        wants: Iterable[str] = (),
        applies: Applies = applies,
        within: Bounds = within,
        title: str = "",
        needs_gold: bool = False,
    ) -> Metric:
        found = Metric(
            name,
            about,
            formula,
            compute,
            applies,
            default,
            frozenset(wants),
            by_subset,
            reads_twice=reads_twice,
            within=within,
            title=title,
            needs_gold=needs_gold,
        )
        return METRICS.add(name, found)

    return add


def simple_metric(
    name: str,
    formula: str,
    about: str,
    applies: Applies | None = None,
    within: Bounds = ANYWHERE,
    title: str = "",
    needs_gold: bool = False,
) -> Callable[[OfCase], OfCase]:
    """Registers a function of a case as a metric: the short way, for ``--plugin`` and notebooks.

    The function returns one number per query, [queries], [queries, layers] or [queries, layers, heads]; rows,
    aggregation and intervals follow from that. ``within`` says between what those numbers lie; an interval over seeds
    ends there. A metric that asks whether answers are right says ``needs_gold=True``: `compare` leaves it out where the
    queries have no labels.

    >>> @simple_metric("confidence", "max_k p_k", "the largest label probability", within=(0, 1))
    ... def confidence(case):
    ...     return case.trace.label_logprobs.exp().amax(-1)
    >>> METRICS["confidence"].about
    'the largest label probability'
    >>> METRICS.remove("confidence")
    """

    def register(function: OfCase) -> OfCase:
        def compute(case: Case, _names: frozenset[str]) -> list[Values]:
            reference = case.against.learning if case.is_pair else None
            return [PerQuery(name, function(case), reference)]

        asked = applies or always
        METRICS.add(
            name,
            Metric(
                name,
                about,
                formula,
                compute,
                asked,
                default=False,
                written_as=function,
                within=within,
                title=title,
                needs_gold=needs_gold,
            ),
        )
        return function

    return register
