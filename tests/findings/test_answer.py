"""What one comparison says, from its interval and its p-value alone."""

import math

import pytest

from dualscope.core.estimate import Interval
from dualscope.core.spec import LearnerSpec
from dualscope.findings.answer import AgainstControl, Answer, ComparisonOutcome, beats, learned, sentences_of


def interval(low: float, mean: float, high: float, seeds: int = 5, each: tuple[float, ...] | None = None) -> Interval:
    return Interval(mean, low, high, seeds, 100, (mean,) * seeds if each is None else each)


def against(difference: Interval, p_corrected: float = 0.01, p_below: float = 1.0) -> AgainstControl:
    value = interval(0.1, 0.2, 0.3)
    return AgainstControl("dilution", True, value, difference, 0.01, p_corrected, p_below, kind="dilution")


@pytest.mark.parametrize(
    ("difference", "p_corrected", "p_below", "outcome"),
    [
        (interval(0.05, 0.1, 0.15), 0.01, 0.5, "above"),
        (interval(0.05, 0.1, 0.15), 0.20, 0.5, "unclear"),  # one task alone would have shown it
        (interval(0.05, 0.1, 0.15), 0.01, 0.01, "above"),  # far from the margin, above it
        (interval(-0.05, 0.01, 0.07), 0.60, 0.5, "unclear"),  # a mean near 0 is not enough for a no
        (interval(-0.05, -0.01, 0.019), 0.60, 0.04, "not above"),
        (interval(-0.05, -0.01, 0.019), 0.60, 0.20, "unclear"),  # one control alone would have shown it
        (interval(0.001, 0.01, 0.019), 0.01, 0.04, "not above"),  # above 0, by less than anybody cares for
        (interval(-0.15, -0.1, -0.05), 0.01, 0.5, "unclear"),  # p is two-sided: below is not above
        (interval(0.05, 0.1, 0.15, seeds=4), 0.01, 0.5, "unclear"),
        (interval(-0.9, -0.5, -0.1, seeds=4), 0.01, 0.01, "unclear"),
        (interval(0.05, 0.1, 0.15, each=(0.2, 0.1, 0.1, 0.1, -0.01)), 0.01, 0.5, "unclear"),  # not in most draws
        (interval(-0.3, -0.2, -0.1, each=(-0.9, -0.1, 0.03, 0.01, -0.1)), 0.01, 0.01, "unclear"),
        (interval(0.05, 0.1, 0.15, 8, each=(*(0.1,) * 7, -0.1)), 0.01, 0.5, "above"),
        (interval(0.05, 0.1, 0.15, 8, each=(*(0.1,) * 6, -0.1, -0.1)), 0.01, 0.5, "unclear"),
    ],
)
def test_outcomes(difference: Interval, p_corrected: float, p_below: float, outcome: ComparisonOutcome) -> None:
    assert against(difference, p_corrected, p_below).outcome == outcome


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
    below = against(interval(0.004, 0.01, 0.016), p_below=0.01)
    far, shown = against(interval(0.2, 0.3, 0.4)), against(interval(-0.9, -0.8, -0.7))
    shown = AgainstControl("gd", False, shown.control_value, shown.difference, 0.01, 0.01)
    value = interval(0.2, 0.3, 0.4)

    def answer(word: str) -> AgainstControl | None:
        comparisons = (far, near, below, shown)
        made = Answer("t", LearnerSpec("gd"), "gd", word, value, value, value, comparisons, (), None, ())  # type: ignore[arg-type]
        return made.decided_by

    assert answer("not above") is below
    assert answer("inconclusive") is near


def test_learning_is_above_zero_shot_and_above_chance() -> None:
    gain = interval(0.1, 0.2, 0.3)
    assert learned(gain, interval(0.6, 0.7, 0.8), 0.5)
    assert not learned(gain, interval(0.4, 0.5, 0.6), 0.5)  # zero-shot was below chance
    assert not learned(interval(-0.1, 0.1, 0.3), interval(0.6, 0.7, 0.8), 0.5)
    assert not learned(gain, None, 0.5)
    assert not learned(None, interval(0.6, 0.7, 0.8), 0.5)


def test_each_seed_stands_beside_the_mean() -> None:
    value = interval(0.2, 0.3, 0.4, each=(0.2, 0.3, 0.4, 0.25, -0.35))
    made = Answer("t", LearnerSpec("gd"), "gd", "inconclusive", value, value, value, (), (), None, ())
    assert "each seed: .20, .30, .40, .25, \N{MINUS SIGN}.35" in next(iter(sentences_of(made)))
