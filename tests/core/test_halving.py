"""Successive halving, by hand and by property."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dualscope.core.halving import FEWEST, GRID, SIZES, Score, best_first, rounds_of


def test_ties_go_to_likelihood_and_then_to_the_smaller_candidate() -> None:
    known = {(1.0, 0): Score(5, 3.0, 10), (0.1, 0): Score(5, 2.0, 10), (0.3, 0): Score(4, 0.1, 10)}
    assert best_first((1.0, 0.1, 0.3), known, 0) == [0.1, 1.0, 0.3]
    known[1.0, 0] = Score(5, 2.0, 10)
    assert best_first((1.0, 0.1, 0.3), known, 0) == [0.1, 1.0, 0.3]
    known[0.1, 0] = Score(5, float("inf"), 10)  # it blew up
    assert best_first((1.0, 0.1, 0.3), known, 0)[0] == 1.0


def test_rounds_go_on_with_the_better_half() -> None:
    first = {(rate, 0): Score(number, 1.0, 25) for number, rate in enumerate(GRID)}
    rounds = rounds_of(GRID, 200, first)
    assert [(r.first, r.last) for r in rounds] == [(0, 25), (25, 50)]
    assert rounds[1].candidates == GRID[5:]
    assert rounds_of(GRID, 30, first)[1].last == 30  # no more examples than there are


@given(st.lists(st.integers(0, 25), min_size=len(GRID), max_size=len(GRID)), st.integers(50, 300))
def test_one_that_is_best_everywhere_is_found(right: list[int], examples: int) -> None:
    best = GRID[len(right) // 2]
    known: dict[tuple[float, int], Score] = {}
    for number in range(len(SIZES)):
        for rate, count in zip(GRID, right, strict=True):
            known[rate, number] = Score(26 if rate == best else count, 1.0, 26)
    rounds = rounds_of(GRID, examples, known)
    assert best_first(rounds[-1].candidates, known, len(rounds) - 1)[0] == best
    assert len(rounds[-1].candidates) >= FEWEST
    assert rounds[-1].last == min(examples, SIZES[-1])
    assert all(one.last == two.first for one, two in pairwise(rounds))
