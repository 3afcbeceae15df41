"""Definitions of what a report names, from the registries themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from inspect import cleandoc


@dataclass(frozen=True)
class Definition:
    name: str
    about: str
    formula: str = ""
    """Of a metric; a learner has none."""


def glossary(metrics: Iterable[str], learners: Iterable[str]) -> list[Definition]:
    """The named metrics and learners, in the registries' order; what a plugin defines is said to be so."""
    from dualscope.learners import LEARNERS
    from dualscope.metrics import METRICS

    wanted = set(metrics)
    found = [Definition(n, METRICS[n].about, METRICS[n].formula) for n in METRICS if n in wanted]
    names = {learner.partition("[")[0].partition(" ")[0] for learner in learners}
    found += [Definition(name, summary(LEARNERS[name])) for name in LEARNERS if name in names]
    known = {definition.name for definition in found}
    return found + [Definition(name, "defined by a plugin") for name in sorted((wanted | names) - known)]


def summary(kind: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
