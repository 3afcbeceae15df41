"""Which shifts of the inputs are said to be withstood."""

import pytest

from dualscope.regression.emergence import LEVEL
from dualscope.regression.experiments.garg import LEAST_SQUARES, SHIFTED, TRANSFORMER, judge_shifts
from dualscope.regression.problems import SHIFTS, UNSHIFTED
from dualscope.regression.results import Results


@pytest.mark.parametrize(
    ("plain", "shifted", "least", "holds"),
    [
        (0.001, 0.04, 0.0, True),
        (0.001, 0.1, 0.0, False),
        (0.001, 0.1, 0.06, False),  # noise: least squares errs too, which is said and excuses nothing
        (0.9, 0.9, 0.0, False),  # one that has learned nothing bears nothing out
    ],
)
def test_a_shift_is_withstood_near_the_unshifted_error(plain: float, shifted: float, least: float, holds: bool) -> None:
    results = Results("garg")
    for name in SHIFTS:
        error = plain if name == UNSHIFTED else shifted
        for learner, value in ((TRANSFORMER, error), (LEAST_SQUARES, least)):
            for examples, factor in ((5, 7.0), (40, 1.0)):  # the longest prompts decide
                results.over_seeds(
                    learner, SHIFTED, [factor * value] * 2, (0, 1), panel=name, x_name="examples", x=examples
                )
    judge_shifts(results, LEVEL)
    assert results.checks
    assert all(check.holds is holds for check in results.checks)
