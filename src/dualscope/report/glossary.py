"""Definitions of what a report names, from the registries themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from inspect import cleandoc

from dualscope.core.spec import LearnerSpec


@dataclass(frozen=True)
class Definition:
    name: str
    about: str
    formula: str = ""
    """Of a metric; a learner has none."""


def glossary(metrics: Iterable[str], learnings: Iterable[LearnerSpec]) -> list[Definition]:
    """The named metrics and learners, in the registries' order; what a plugin defines is said to be so."""
    from dualscope.learners import COMBINATORS, LEARNERS
    from dualscope.metrics import METRICS

    wanted = set(metrics)
    found = [Definition(n, METRICS[n].about, METRICS[n].formula) for n in METRICS if n in wanted]
    learnings = list(learnings)
    names = {learning.name for learning in learnings}
    controls = {learning.control for learning in learnings}
    found += [Definition(name, summary(LEARNERS[name])) for name in LEARNERS if name in names]
    found += [Definition(f"under {n}", summary(COMBINATORS[n])) for n in COMBINATORS if n in controls]
    known = {definition.name for definition in found}
    return found + [Definition(name, "defined by a plugin") for name in sorted((wanted | names) - known)]


def summary(kind: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
