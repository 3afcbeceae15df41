"""What is said of layers follows from their rows alone."""

import pytest

from dualscope.regression.emergence import ERROR_RESTS, LOSS_RESTS
from dualscope.regression.experiments.newton import DESCENT, MATCH, NEARNESS, NEWTON, ONLINE, Newton
from dualscope.regression.results import Results
from dualscope.regression.training import ALL, LONGEST

RESTED = [1.0, 0.5] + [0.1] * 30
LATER = "condition 1: the later half of the layers match a Newton iterate with cosine >= 0.95"
REST, LOSS = (f"condition 1: {claim}" for claim in (ERROR_RESTS, LOSS_RESTS))


def judged(near: list[float], errors: list[float], losses: list[float] | None = None) -> dict[str, bool]:
    """Two seeds that are alike, with these cosines of layers 0 to 4, these errors with the longest prompt and these
    losses in training (the errors, unless given): claim -> holds.
    """
    results = Results("newton")
    for layer, cosine in enumerate(near):
        for name, match in ((NEWTON, 5 * layer), (DESCENT, 4**layer), (ONLINE, 8)):
            for metric, value in ((MATCH, match), (NEARNESS, cosine)):
                results.over_seeds(name, metric, [value] * 2, (0, 1), panel="condition 1", x_name="layer", x=layer)
    for measure, curve in ((LONGEST, errors), (ALL, losses or errors)):
        for step, error in enumerate(curve):
            where = {"panel": "training: condition 1", "x_name": "step", "x": step}
            results.over_seeds("transformer", measure, [error] * 2, (0, 1), **where)
    Newton(layers=4, conditions=(1.0,), seeds=(0, 1)).conclude(results)
    return {check.claim: check.holds for check in results.checks}


@pytest.mark.parametrize(
    ("near", "holds"), [([0.2, 0.2, 0.96, 0.96, 0.96], True), ([1, 1, 0.94, 1, 1], False), ([1, 1, 1, 1, 0.94], False)]
)
def test_the_later_half_of_four_layers_begins_with_the_second(near: list[float], holds: bool) -> None:
    found = judged(near, RESTED)
    assert found[LATER] is holds
    assert all(holds for claim, holds in found.items() if claim != LATER)


@pytest.mark.parametrize(
    ("first", "last", "rests"), [(0.1, 0.1, True), (0.1, 0.097, True), (0.1, 0.08, False), (0.0015, 0.0008, False)]
)
def test_an_error_that_falls_by_more_than_a_twentieth_does_not_rest(first: float, last: float, rests: bool) -> None:
    assert judged([1.0] * 5, [1.0] * 32 + [first] * 4 + [last] * 4)[REST] is rests


def test_a_loss_may_rest_where_the_error_that_can_be_zero_does_not() -> None:
    falling = [1.0] * 32 + [0.002] * 4 + [0.001] * 4
    found = judged([1.0] * 5, falling, [1.0] * 32 + [0.252] * 4 + [0.251] * 4)
    assert found[LOSS]
    assert not found[REST]
    found = judged([1.0] * 5, falling, [1.0] * 32 + [0.252] * 4 + [0.246] * 4)
    assert not found[LOSS]
