"""Statistics against brute force, and what an interval promises, simulated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import t as student

from dualscope.core.estimate import Estimate
from dualscope.core.statistics import COSINE, SHARE, SIZE, Bounds, holm, quantiles, resample_counts

RNG = np.random.default_rng(0)
finite = st.floats(-10, 10, allow_nan=False)
# How seeds, queries and both together vary, of a difference of two likenesses: gd less gd under random labels, on subj
# and sst2, in a GPT-2 of 21M parameters that learned in context from real text; and wider ones.
REALTEXT = ((0.049, 0.0, 0.031), (0.025, 0.005, 0.021))
SPREADS = (REALTEXT[0], (0.05, 0.05, 0.2), (0.02, 0.2, 0.2), (0.1, 0.05, 0.3))
QUERIES = 40


def test_counts_are_the_drawn_indices() -> None:
    counts = resample_counts(7, 5, seed=3)
    drawn = np.random.default_rng(3).integers(0, 7, (5, 7))
    np.testing.assert_array_equal(counts, [[np.sum(row == i) for i in range(7)] for row in drawn])
    assert (counts.sum(1) == 7).all()


def draws(rng: np.random.Generator, seeds: int, spread: tuple[float, float, float]) -> np.ndarray:
    """A table of nothing: [seeds, queries] around 0."""
    by_seed, by_query, both = spread
    return (
        by_seed * rng.standard_normal((seeds, 1))
        + by_query * rng.standard_normal((1, QUERIES))
        + both * rng.standard_normal((seeds, QUERIES))
    )


SEEDS = [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (5, 8)), 10]


@pytest.mark.parametrize("seeds", SEEDS)
def test_intervals_cover_what_they_say(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    for spread in SPREADS:
        intervals = [Estimate.of(draws(rng, seeds, spread)).interval for _ in range(1500)]
        covered = np.mean([one.low <= 0 <= one.high for one in intervals])
        assert covered >= 0.93, (spread, covered)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("tasks", [1, 6])
def test_false_answers_are_as_rare_as_the_rule_says(seeds: int, tasks: int) -> None:
    """Of studies in which there is nothing, those in which some task is called above the control."""
    rng = np.random.default_rng(10 * seeds + tasks)
    for spread in SPREADS:
        said = 0
        for _ in range(600):
            found = [Estimate.of(draws(rng, seeds, spread)) for _ in range(tasks)]
            adjusted = holm({str(i): one.p for i, one in enumerate(found)})
            said += any(one.mean > 0 and adjusted[str(i)] < 0.05 for i, one in enumerate(found))
        assert said / 600 <= 0.06, (spread, said)


def test_an_effect_of_a_tenth_is_found_with_eight_seeds() -> None:
    rng = np.random.default_rng(1)
    for spread in (*REALTEXT, SPREADS[1]):
        found = [Estimate.of(0.1 + draws(rng, 8, spread)).interval.low > 0 for _ in range(400)]
        assert np.mean(found) >= 0.8, spread


def test_the_mean_is_of_seeds_and_ignores_what_is_not_there() -> None:
    values = RNG.standard_normal((4, 9))
    values[0, :3] = np.nan
    found = Estimate.of(values)
    assert found.mean == pytest.approx(np.nanmean(values, 1).mean())
    assert found.by_seeds == pytest.approx(np.nanmean(values, 1).var(ddof=1) / 4)
    assert Estimate.of(np.full((2, 3), np.nan)).seeds == 0
    one = Estimate.of(values[:1, 3:])
    assert (one.seeds, one.by_seeds) == (1, 0.0)
    assert one.by_queries == pytest.approx(values[0, 3:].var(ddof=1) / 6)


def test_students_interval_by_hand() -> None:
    """Three seeds of one query each: t of two degrees of freedom is 4.303."""
    found = Estimate.of_seeds([0.1, 0.2, 0.3]).interval
    reach = 4.302652729 * 0.1 / 3**0.5
    assert (found.low, found.high) == pytest.approx((0.2 - reach, 0.2 + reach))
    assert Estimate.of_seeds([0.1, 0.2, 0.3]).p == pytest.approx(0.0741799)


@given(st.lists(finite, min_size=2, max_size=8), st.floats(-5, 5))
def test_shifting_all_values_shifts_the_interval(values: list[float], by: float) -> None:
    plain, moved = Estimate.of_seeds(values).interval, Estimate.of_seeds(np.array(values) + by).interval
    assert moved.low == pytest.approx(plain.low + by, abs=1e-6)
    assert moved.high - moved.low == pytest.approx(plain.high - plain.low, abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0, 1), st.sampled_from([SHARE, COSINE, SIZE]))
def test_a_cut_interval_covers_what_it_did(values: list[float], truth: float, bounds: Bounds) -> None:
    whole = Estimate.of_seeds(values).interval
    cut = whole.within(bounds)
    assert bounds[0] <= cut.low <= cut.mean + 1e-12
    assert cut.mean - 1e-12 <= cut.high <= bounds[1]
    assert (cut.low <= truth <= cut.high) == (whole.low <= truth <= whole.high)


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_intervals_of_an_accuracy_cover_what_they_say(seeds: int) -> None:
    """Right and wrong answers, not normal noise: queries of which some are harder, seeds of which some are worse."""
    rng = np.random.default_rng(seeds)
    for level in (0.0, 1.0, 2.5):  # accuracies of .5, .71 and .92
        drawn = rng.standard_normal((2, 200_000))
        truth = expit(level + drawn[0] + 0.3 * drawn[1]).mean()
        covered = []
        for _ in range(800):
            easy = level + rng.standard_normal(150) + 0.3 * rng.standard_normal((seeds, 1))
            found = Estimate.of((rng.random((seeds, 150)) < expit(easy)).astype(float)).interval.within(SHARE)
            covered.append(found.low <= truth <= found.high)
        assert np.mean(covered) >= 0.93, (level, np.mean(covered))


def test_what_is_not_known_stays_so_within_bounds() -> None:
    found = Estimate(0.5, np.nan, np.nan, 1, 0).interval.within(SHARE)
    assert np.isnan([found.low, found.high]).all()


def test_how_many_seeds_would_do() -> None:
    rng = np.random.default_rng(3)
    unclear = Estimate.of(0.05 + draws(rng, 4, (0.05, 0.0, 0.2)))
    needed = unclear.seeds_needed()
    assert needed is not None
    assert needed > 4
    assert Estimate.of(0.01 + draws(rng, 4, (0.0, 1.0, 0.0))).seeds_needed() is None  # the queries are what varies
    assert Estimate.of_seeds([0.2]).seeds_needed() is None


def test_a_ratio_and_a_mean_over_tasks() -> None:
    rng = np.random.default_rng(5)
    right = 0.8 + 0.05 * rng.standard_normal((6, 30))
    left = 0.5 * right + 0.01 * rng.standard_normal((6, 30))
    share = Estimate.of_ratio(left, right)
    assert share.mean == pytest.approx(left.mean() / right.mean())
    assert share.interval.low < 0.5 < share.interval.high
    # What both have in common moves neither up: what is left is the noise of left around its share of right.
    assert share.se == pytest.approx(Estimate.of((left - share.mean * right) / right.mean()).se)
    assert share.se < 0.6 * Estimate.of(left / right.mean()).se
    parts = [Estimate.of(draws(rng, 5, SPREADS[0]) + level) for level in (0.1, 0.3)]
    both = Estimate.mean_of(parts)
    assert both.mean == pytest.approx((parts[0].mean + parts[1].mean) / 2)
    assert both.se == pytest.approx(np.hypot(parts[0].se, parts[1].se) / 2)
    assert 4 <= both.freedom <= 8


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_quantiles_are_numpys(values: list[float]) -> None:
    low, high = quantiles(np.array(values))
    assert (float(low), float(high)) == pytest.approx((np.quantile(values, 0.025), np.quantile(values, 0.975)))


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": float("nan")})["a"] == 0.02
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.01, "b": 0.02, "c": 0.03}) == {"a": 0.03, "b": 0.04, "c": 0.04}  # one task less each time


def test_queries_have_degrees_of_freedom_of_their_own() -> None:
    """By hand: 3 seeds and 41 queries have 2 and 40; p is the alpha whose interval ends at 0."""
    found = Estimate(0.3, 0.01, 0.02, 3, 41)
    seeds, queries = (float(student.ppf(0.975, freedom)) for freedom in (2, 40))
    assert found.reach() == pytest.approx((seeds**2 * 0.01 + queries**2 * 0.02) ** 0.5)
    assert found.reach(found.p) == pytest.approx(0.3)
    assert found.reach(found.p_of(0.1)) == pytest.approx(0.2)
    assert Estimate(0.3, 0.0, 0.02, 3, 41).p == pytest.approx(2 * student.sf(0.3 / 0.02**0.5, 40))
    assert Estimate(0.3, 0.02, 0.0, 3, 41).p == pytest.approx(2 * student.sf(0.3 / 0.02**0.5, 2))


def test_an_explained_share_varies_by_what_is_not_in_proportion() -> None:
    """Where every seed leaves the same share of what there is, nothing varies, however much there is."""
    rng = np.random.default_rng(7)
    whole = rng.uniform(0.1, 2.0, (5, 20))
    same = Estimate.of_share(0.4 * whole, whole)
    assert same.mean == pytest.approx(0.6)
    assert same.se == pytest.approx(0, abs=1e-12)
    assert same.each == pytest.approx((0.6,) * 5)
    left = 0.4 * whole + 0.02 * rng.standard_normal((5, 20))
    found = Estimate.of_share(left, whole)
    assert found.mean == pytest.approx(1 - left.mean() / whole.mean())
    assert found.se == pytest.approx(Estimate.of_ratio(left, whole).se)
    apart = Estimate.of_shares_apart((left, whole), (0.5 * whole, whole))
    assert apart.mean == pytest.approx(found.mean - 0.5)
    assert np.mean(apart.each) == pytest.approx(apart.mean)
    assert apart.se == pytest.approx(found.se)


def test_intervals_of_an_explained_share_cover_what_they_say() -> None:
    """Seeds of which some have much to explain and some little."""
    rng, covered = np.random.default_rng(8), []
    for _ in range(800):
        whole = rng.lognormal(-1.0, 0.7, (5, 1)) * rng.gamma(2.0, 0.5, (5, 40))
        share = 0.5 + 0.1 * rng.standard_normal((5, 1))
        found = Estimate.of_share((1 - share) * whole, whole).interval
        covered.append(found.low <= 0.5 <= found.high)
    assert np.mean(covered) >= 0.9
