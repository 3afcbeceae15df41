"""What a learner's metrics need beside it: the one rule, for plans and for comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from dualscope.core.learning import IN_CONTEXT, Learning
from dualscope.core.words import Role

PLAIN = "gd"


def companions(
    learning: Learning, role: Role, reference: Learning | None, others: Mapping[Learning, Role]
) -> tuple[Learning, ...]:
    """The contexts that teach nothing, plain GD of the same rate, the ceilings, the same learner in other orders, and
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
