"""What one comparison says, from its interval and its p-value alone."""

import math

import pytest

from dualscope.core.estimate import Interval
from dualscope.core.learning import Learning
from dualscope.findings.answer import AgainstControl, Answer, ComparisonOutcome, beats


def interval(low: float, mean: float, high: float, seeds: int = 5) -> Interval:
    return Interval(mean, low, high, seeds, 100)


def against(difference: Interval, p: float = 0.01, p_holm: float = 0.01) -> AgainstControl:
    return AgainstControl("dilution", True, interval(0.1, 0.2, 0.3), difference, p, p_holm, kind="dilution")


@pytest.mark.parametrize(
    ("difference", "p_holm", "outcome"),
    [
        (interval(0.05, 0.1, 0.15), 0.01, "above"),
        (interval(0.05, 0.1, 0.15), 0.20, "unclear"),  # one task alone would have shown it
        (interval(-0.01, 0.1, 0.21), 0.01, "unclear"),
        (interval(-0.05, 0.01, 0.07), 0.60, "unclear"),  # a mean near 0 is not enough for a no
        (interval(-0.05, -0.01, 0.019), 0.60, "not above"),
        (interval(0.001, 0.01, 0.019), 0.01, "not above"),  # above 0, by less than anybody cares for
        (interval(0.05, 0.1, 0.15, seeds=2), 0.01, "unclear"),
        (interval(-0.9, -0.5, -0.1, seeds=2), 0.01, "unclear"),
    ],
)
def test_outcomes(difference: Interval, p_holm: float, outcome: ComparisonOutcome) -> None:
    assert against(difference, p_holm=p_holm).outcome == outcome


def test_only_a_whole_interval_above_0_beats_zero_shot() -> None:
    assert beats(interval(0.01, 0.1, 0.2))
    assert not beats(interval(-0.01, 0.1, 0.2))
    assert not beats(interval(0.0, 0.1, 0.2))
    assert not beats(interval(math.nan, 0.1, math.nan))
    assert not beats(None)


def test_only_a_whole_interval_below_0_is_beaten() -> None:
    assert against(interval(-0.3, -0.2, -0.1)).beaten
    assert not against(interval(-0.3, -0.1, 0.1)).beaten


def test_what_decided_is_the_nearest_of_those_that_made_the_answer() -> None:
    near = against(interval(-0.1, 0.001, 0.1))  # nearer, and unclear
    below = against(interval(0.004, 0.01, 0.016))
    far, shown = against(interval(0.2, 0.3, 0.4)), against(interval(-0.9, -0.8, -0.7))
    shown = AgainstControl("gd", False, shown.control_value, shown.difference, 0.01, 0.01)
    value = interval(0.2, 0.3, 0.4)

    def answer(word: str) -> AgainstControl | None:
        comparisons = (far, near, below, shown)
        made = Answer("t", Learning("gd"), "gd", word, value, value, value, comparisons, (), None, ())  # type: ignore[arg-type]
        return made.decided_by

    assert answer("not above") is below
    assert answer("inconclusive") is near
