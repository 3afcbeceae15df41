"""What a metric is, and the registry of all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from dualscope.core.registry import Registry
from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import ANYWHERE, Bounds
from dualscope.metrics.case import Case, PerQuery, Values

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench

Applies = Callable[[Case], bool]
Function = Callable[..., Any]
OfCase = Callable[[Case], Tensor]
Measure = Callable[[Case], "Values | Iterable[Values]"]
Reading = Callable[["Bench", Case, Collection[str]], Mapping[str, Any]]
"""Of a bench, the case so far, and the asked metrics that name it."""
Together = Callable[[Case, Mapping[str, Function]], Iterable[Values]]
F = TypeVar("F", bound=Function)


def always(_case: Case) -> bool:
    return True


@dataclass(frozen=True)
class Metric:
    """A named number, and the function that computes it. As a decorator it registers itself with that function.

    The function is of a case, and returns the metric's values. What several need is computed once a case:
    ``case.shared(work)``. Metrics that go through the same large tensors name a function that does it for all of them,
    ``together``; their own functions are then of what it gives.
    """

    name: str
    formula: str
    about: str  # one line
    function: Function = always
    """What a person wrote: of a case, or of what `together` gives it. Its module tells a plugin's metric from ours."""
    _: KW_ONLY
    together: Together | None = None
    """Computes all asked metrics that name it in one pass, from their functions by name."""
    reading: Reading | None = None
    """What is asked of the model beside the traces, once for all asked metrics that name it: ``case.read`` has it."""
    applies: Applies = always
    default: bool = True  # else on request
    wants: frozenset[str] = frozenset()  # what the traces or the log must hold besides the usual
    by_subset: bool = True  # else over all queries always: on a subset by prediction it would be trivial
    reads_twice: bool = False  # needs a few queries in another order of summation, which is another learning
    within: Bounds = ANYWHERE
    """Between what its numbers lie by their definition: intervals are cut there."""
    title: str = ""
    """What charts and tables call it; its name where nothing is said."""
    needs_gold: bool = False
    """It asks whether an answer is right: nothing for queries without a label."""
    per_head: bool = False
    """Of single heads alone, and among the default ones where rows of heads are asked for."""

    def __call__(self, function: F) -> F:
        METRICS.add(self.name, replace(self, function=function))
        return function

    def values(self, case: Case, functions: Mapping[str, Function]) -> list[Values]:
        """Of this metric and of those that are computed with it: their functions by name."""
        found = self.function(case) if self.together is None else self.together(case, functions)
        return [found] if isinstance(found, Values) else list(found)


metric = Metric
METRICS: Registry[Metric] = Registry("metric")
"""Every metric by its name; `dualscope.metrics.simple_metric` adds one.

>>> from dualscope import METRICS
>>> METRICS["sim_aou"].formula
'cos(c.attn_out - z.attn_out, g.attn_out - z.attn_out)'
"""


def called(function: Function, given: object) -> Any:
    """A formula of those attributes of ``given`` that its arguments are named after."""
    return function(*(getattr(given, name) for name in _arguments(function)))


@cache
def _arguments(function: Function) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def by_layers(case: Case, functions: Mapping[str, Function], chunks: Iterable[object]) -> Iterator[PerQuery]:
    """Formulas of some layers at a time, put together.

    A formula gives [queries, layers, ...] of a chunk, or such a tensor for each of several references.
    """
    parts: dict[tuple[str, LearnerSpec], list[Tensor]] = {}
    for chunk in chunks:
        for name, function in functions.items():
            found = called(function, chunk)
            for reference, values in (found if isinstance(found, dict) else {case.against.learning: found}).items():
                parts.setdefault((name, reference), []).append(values)
    for (name, reference), values_of in parts.items():
        yield PerQuery(name, torch.cat(values_of, 1), reference)


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
    traits: dict[str, Any] = {"within": within, "title": title, "needs_gold": needs_gold}
    return metric(name, formula, about, applies=applies or always, default=False, together=_one_by_one, **traits)


def _one_by_one(case: Case, functions: Mapping[str, Function]) -> Iterator[PerQuery]:
    """Numbers per query as values."""
    reference = case.against.learning if case.is_pair else None
    for name, function in functions.items():
        yield PerQuery(name, function(case), reference)
