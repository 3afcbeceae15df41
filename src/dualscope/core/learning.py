"""A learner as it is run: the one value that identifies it, in plans, rows, findings and pages; and its companions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dualscope.core.canonical import canonical
from dualscope.core.words import Control, Role

ALIASES: dict[str, tuple[str, Control]] = {
    "gd-redraw": ("gd", "redraw"),
    "gd-reorder": ("gd", "reorder"),
    "gd-random-labels": ("gd", "random-labels"),
    "gd-other-task": ("gd", "other-task"),
    "random-update": ("gd", "random-update"),
    "in-context-redraw": ("in-context", "redraw"),
    "icl-redraw": ("in-context", "redraw"),
    "in-context-reorder": ("in-context", "reorder"),
    "icl-reorder": ("in-context", "reorder"),
}
"""What learners under a control were called before controls were for every learner."""


@dataclass(frozen=True)
class Learning:
    """Who learns, under which control, with what options (canonical JSON of what differs from the defaults), how fast.

    >>> lcgd = Learning.of("lcgd", {"readout": "attention"}, rate=0.1)
    >>> lcgd.label, lcgd.under("random-labels").label
    ('lcgd[readout=attention]', 'lcgd[readout=attention] under random-labels')
    """

    name: str
    control: Control | None = None
    options: str = "{}"
    rate: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        options: Mapping[str, Any] | None = None,
        control: Control | None = None,
        rate: float | None = None,
    ) -> Learning:
        return cls(name, control, canonical(dict(options or {})), rate)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(json.loads(self.options))

    @property
    def label(self) -> str:
        """What people read. Nothing is ever read back out of it."""
        inside = ",".join(f"{key}={value}" for key, value in sorted(self.settings.items()))
        under = f" under {self.control}" if self.control else ""
        return f"{self.name}[{inside}]{under}" if inside else f"{self.name}{under}"

    def under(self, control: Control | None) -> Learning:
        """The same learner under a control; None: as it is without one."""
        return replace(self, control=control)

    def is_reordered(self, other: Learning) -> bool:
        """Whether this is another learner from the same demonstrations in another order."""
        mine = {name: value for name, value in self.settings.items() if name != "draw"}
        return (self.name, self.control, self.rate, mine) == (
            other.name,
            "reorder",
            other.rate,
            other.settings,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Plain data that `from_facts` reads back."""
        return {
            "learner": self.name,
            "control": self.control,
            "options": self.settings,
            "rate": self.rate,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Learning:
        return cls.of(facts["learner"], facts["options"], facts["control"], facts["rate"])


ZERO_SHOT, IN_CONTEXT = Learning("zero-shot"), Learning("in-context")


PLAIN = "gd"


def companions(
    learning: Learning, role: Role, reference: Learning | None, others: Mapping[Learning, Role]
) -> tuple[Learning, ...]:
    """What a learner's metrics need beside it: the one rule, for plans and for comparisons.

    The contexts that teach nothing, plain GD of the same rate, the ceilings, the same learner in other orders, and
    ICL from other demonstrations, as far as they are among the others.

    Only of learners that are compared with in-context learning. A null beside a null answers no question, so contexts
    that teach nothing are for learners that are under test or have a rate.

    >>> others = {Learning("null-context"): "null", Learning("gd", rate=0.1): "hypothesis"}
    >>> [other.label for other in companions(Learning("lcgd", rate=0.1), "hypothesis", IN_CONTEXT, others)]
    ['null-context', 'gd']
    >>> companions(Learning("null-context"), "null", IN_CONTEXT, others)
    ()
    """
    if reference != IN_CONTEXT:
        return ()
    again = [other for other in others if other == IN_CONTEXT.under("redraw")]
    orders = [other for other in others if learning.control is None and other.is_reordered(learning)]
    if not (role == "hypothesis" or learning.rate is not None):
        return tuple(other for other in (*again, *orders) if other != learning)
    ceilings = [other for other, kind in others.items() if kind == "ceiling" and other.control is None]
    nulls = [other for other, kind in others.items() if kind == "null" and other.control is None]
    plain = Learning(PLAIN, rate=learning.rate)
    found = (*nulls, *([plain] if plain in others else []), *ceilings, *again, *orders)
    return tuple(other for other in found if other != learning)
