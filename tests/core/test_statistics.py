"""Statistics against brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualscope.core.statistics import (
    Crossed,
    bootstrap_mean,
    crossed_bootstrap,
    difference,
    holm,
    paired_difference,
    quantiles,
    resample_counts,
    sign_flip,
)

RNG = np.random.default_rng(0)
finite = st.floats(-10, 10, allow_nan=False)


def with_holes(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[np.random.default_rng(1).random(values.shape) < 0.2] = np.nan
    return values


def test_counts_are_the_drawn_indices() -> None:
    counts = resample_counts(7, 5, seed=3)
    drawn = np.random.default_rng(3).integers(0, 7, (5, 7))
    np.testing.assert_array_equal(counts, [[np.sum(row == i) for i in range(7)] for row in drawn])
    assert (counts.sum(1) == 7).all()


def test_mean_agrees_with_brute_force() -> None:
    values = with_holes(RNG.standard_normal((30, 2)))
    mean, low, high = bootstrap_mean(values, resamples=200, seed=4)
    draws = [np.nanmean(values[rows], 0) for rows in np.random.default_rng(4).integers(0, 30, (200, 30))]
    np.testing.assert_allclose(mean, np.nanmean(values, 0))
    np.testing.assert_allclose(low, np.quantile(draws, 0.025, axis=0))
    np.testing.assert_allclose(high, np.quantile(draws, 0.975, axis=0))


def test_crossed_agrees_with_brute_force() -> None:
    values = with_holes(RNG.standard_normal((3, 20)))
    rng = np.random.default_rng(2)
    seeds, queries = rng.integers(0, 3, (100, 3)), rng.integers(0, 20, (100, 20))
    draws = [np.nanmean(values[np.ix_(s, q)]) for s, q in zip(seeds, queries, strict=True)]
    crossed = Crossed(3, 20, resamples=100, seed=2)
    np.testing.assert_allclose(crossed.draws(values), draws)
    found = crossed_bootstrap(values, resamples=100, seed=2)
    assert found.mean == pytest.approx(np.nanmean(values))
    assert (found.low, found.high) == pytest.approx((np.quantile(draws, 0.025), np.quantile(draws, 0.975)))
    assert (found.seeds, found.queries) == (3, 20)
    other = RNG.random((3, 20)) + 1
    both = np.where(np.isfinite(values), other, np.nan)
    ratios = crossed.draws(values) / crossed.draws(both)
    assert crossed.ratio(values, other).high == pytest.approx(np.quantile(ratios, 0.975))
    assert crossed.interval_and_p(values + 100)[1] == pytest.approx(2 / 101)
    np.testing.assert_allclose(
        crossed.draws(other), [other[np.ix_(s, q)].mean() for s, q in zip(seeds, queries, strict=True)]
    )


def test_crossed_is_wider_than_queries_alone_when_seeds_differ() -> None:
    values = RNG.standard_normal((4, 1)) + 0.01 * RNG.standard_normal((4, 100))
    crossed = crossed_bootstrap(values)
    _, low, high = bootstrap_mean(values.mean(0))
    assert crossed.high - crossed.low > 10 * (high - low)


def test_nothing_is_nan() -> None:
    empty = crossed_bootstrap(np.full((3, 4), np.nan))
    assert np.isnan([empty.mean, empty.low, empty.high]).all()
    assert empty.seeds == 0
    assert np.isnan(bootstrap_mean(np.empty((0,)))[0])
    assert np.isnan(Crossed(2, 3).interval_and_p(np.full((2, 3), np.nan))[1])
    assert np.isnan(sign_flip(np.full((2, 3), np.nan)).p)


@given(st.lists(st.one_of(finite, st.just(float("nan"))), min_size=1, max_size=30))
def test_quantiles_agree_with_numpy(values: list[float]) -> None:
    low, high = quantiles(np.array(values), level=0.8)
    kept = [v for v in values if not np.isnan(v)]
    expected = np.quantile(kept, [0.1, 0.9]) if kept else [np.nan, np.nan]
    np.testing.assert_allclose([low, high], expected, atol=1e-9)


def test_differences_use_the_layers_that_both_have() -> None:
    left = np.array([[[1.0, 2.0, np.nan]]])
    right = np.array([[[0.0, np.nan, 3.0]]])
    assert difference(left, right) == pytest.approx(1.0)
    a, b = RNG.random((3, 10)), RNG.random((3, 10))
    assert paired_difference(a, b).mean == pytest.approx(a.mean() - b.mean())


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=6))
def test_sign_flip_enumerates(values: list[int]) -> None:
    flips = [abs(np.dot(signs, values)) for signs in product([1, -1], repeat=len(values))]
    found = sign_flip(np.array(values) / 8)
    assert found.p == np.mean([flip >= abs(sum(values)) for flip in flips])
    assert found.smallest == 2.0 ** (1 - len(values))
    assert found.p >= found.smallest


def test_three_seeds_cannot_go_below_a_quarter() -> None:
    assert sign_flip(np.array([5.0, 6.0, 7.0])[:, None] + RNG.random((3, 50))).p == 0.25
    many = sign_flip(np.linspace(1, 2, 20))
    assert many.p == many.smallest == 1 / 2**14


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_step_down_rule(p_values: list[float]) -> None:
    """Adjusted p <= alpha exactly where the step-down procedure at alpha rejects."""
    adjusted = holm({str(i): p for i, p in enumerate(p_values)})
    for alpha in (0.01, 0.05, 0.3):
        order = np.argsort(p_values, kind="stable")
        rejected: set[str] = set()
        for rank, i in enumerate(order):
            if p_values[i] * (len(p_values) - rank) > alpha:
                break
            rejected.add(str(i))
        assert {name for name, p in adjusted.items() if p <= alpha} == rejected


def test_label_says_how_many_seeds() -> None:
    assert crossed_bootstrap(np.ones((1, 5))).label == "95 % interval over 1 seed x 5 queries"
