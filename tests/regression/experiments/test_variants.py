"""How kinds of attention are compared, from curves whose numbers are known."""

import pytest

from dualscope.regression.emergence import APPEARS
from dualscope.regression.experiments.variants import NORMAL, Variants
from dualscope.regression.results import Results
from dualscope.regression.training import ALL, LONGEST

OTHER = "momentum, eta = 0.5"


def compared(steps_of_the_last_seed: list[int], appears: bool = True) -> Results:
    """Errors that fall with the steps, of `OTHER` twice as fast; one of its two seeds is watched at other steps."""
    results = Results("variants")
    for name, faster in ((OTHER, 2), (NORMAL, 1)):
        for seed, watched in ((0, [0, 50, 100, 150]), (1, [0, 50, 100, 150])):
            late = name == OTHER and seed == 1
            for step in steps_of_the_last_seed if late else watched:
                for metric in (ALL, LONGEST):
                    value = 1 / (1 + faster * step)
                    results.add(name, metric, value, panel="training", x_name="step", x=step, seed=seed)
            if appears or not late:
                results.add(name, APPEARS, 50, panel="training", x_name="step", x=50, seed=seed)
    Variants(seeds=(0, 1), arms=(NORMAL, OTHER)).conclude(results)
    return results


@pytest.mark.parametrize(("watched", "common"), [([0, 50, 100, 150], 150), ([0, 100, 200, 300], 100)])
def test_equal_steps_are_the_last_that_every_seed_of_every_kind_was_watched_at(watched: list[int], common: int) -> None:
    found = compared(watched)
    assert found.values(NORMAL, "error at equal steps") == dict.fromkeys((0, 1), 1 / (1 + common))
    assert found.values(OTHER, "error at equal steps") == dict.fromkeys((0, 1), 1 / (1 + 2 * common))


def test_a_kind_that_has_not_begun_in_one_seed_is_named() -> None:
    (check,) = compared([0, 50, 100, 150], appears=False).checks
    assert not check.holds
    assert OTHER in check.found
    (check,) = compared([0, 50, 100, 150]).checks
    assert check.holds


def test_kinds_stand_in_their_own_order_whichever_part_came_first() -> None:
    rows = compared([0, 50, 100, 150]).rows
    assert list(dict.fromkeys(row["series"] for row in rows)) == [NORMAL, OTHER]
