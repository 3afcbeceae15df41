"""What a learner's metrics need beside it: the one rule, for plans and for comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from dualscope.core.learning import IN_CONTEXT, Learning
from dualscope.core.words import Role

PLAIN = "gd"


def companions(
    learning: Learning, role: Role, reference: Learning | None, others: Mapping[Learning, Role]
) -> tuple[Learning, ...]:
    """The contexts that teach nothing, and plain GD of the same rate, as far as they are among the others.

    Only of learners that are compared with in-context learning and that are under test or have a rate: a null
    beside a null answers no question.

    >>> others = {Learning("null-context"): "null", Learning("gd", rate=0.1): "hypothesis"}
    >>> [other.label for other in companions(Learning("lcgd", rate=0.1), "hypothesis", IN_CONTEXT, others)]
    ['null-context', 'gd']
    >>> companions(Learning("null-context"), "null", IN_CONTEXT, others)
    ()
    """
    if reference != IN_CONTEXT or not (role == "hypothesis" or learning.rate is not None):
        return ()
    nulls = [other for other, kind in others.items() if kind == "null" and other.control is None]
    plain = Learning(PLAIN, rate=learning.rate)
    return tuple(other for other in (*nulls, *([plain] if plain in others else [])) if other != learning)
