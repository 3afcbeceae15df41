"""What learners are compared with, against numpy, scipy and scikit-learn, and iterates against their definitions."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Lasso, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

from dualscope.regression.baselines import (
    Spectrum,
    boost,
    fit_networks,
    gradient_descent,
    grow,
    lasso,
    least_squares,
    nearest,
    newton,
    online_gradient_descent,
    ridge,
)
from dualscope.regression.problems import LinearFunctions


def prompt(d: int = 4, points: int = 11, seed: int = 0, noise: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = LinearFunctions(d, noise).draw(3, points, torch.Generator().manual_seed(seed))
    return drawn.x.double(), drawn.y.double()


def test_least_squares_is_scipys_of_least_norm() -> None:
    x, y = prompt()
    found = Spectrum.of(x, y)
    guesses, weights = found.predict(least_squares), found.weights(least_squares)
    for task in range(3):
        for k in range(1, 11):
            expected = linalg.lstsq(x[task, :k].numpy(), y[task, :k].numpy())[0]
            np.testing.assert_allclose(weights[task, k].numpy(), expected, rtol=1e-6, atol=1e-8)
            assert float(guesses[task, k]) == pytest.approx(float(expected @ x[task, k].numpy()), abs=1e-7)
    assert guesses[:, 0].tolist() == [0, 0, 0]
    for k in (1, 4, 10):
        last = Spectrum.of_last(x[:, : k + 1], y[:, : k + 1]).predict(least_squares)
        torch.testing.assert_close(last[:, 0], guesses[:, k])


def test_ridge_is_scikit_learns() -> None:
    x, y = prompt()
    weights = Spectrum.of(x, y).weights(ridge(0.7))
    for k in range(1, 11):
        model = Ridge(0.7, fit_intercept=False).fit(x[0, :k].numpy(), y[0, :k].numpy())
        np.testing.assert_allclose(weights[0, k].numpy(), model.coef_, rtol=1e-8, atol=1e-10)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 6), st.integers(0, 50))
def test_newtons_iterate_is_its_definition(steps: int, seed: int) -> None:
    """M <- 2 M - M S M from S / s_max^2, then w = M X^T y."""
    x, y = prompt(seed=seed)
    found = Spectrum.of(x, y).weights(newton(steps))
    for k in (2, 4, 10):
        a, b = x[0, :k], y[0, :k]
        inner = a.T @ a
        inverse = inner / torch.linalg.matrix_norm(inner, 2) ** 2
        for _ in range(steps):
            inverse = 2 * inverse - inverse @ inner @ inverse
        torch.testing.assert_close(found[0, k], inverse @ a.T @ b, rtol=1e-8, atol=1e-10)


def test_newton_converges_to_least_squares_twice_as_many_digits_a_step() -> None:
    x, y = prompt(noise=0.0)
    found = Spectrum.of(x, y)
    exact = found.predict(least_squares)
    apart = [float((found.predict(newton(t)) - exact)[:, 5:].abs().max()) for t in range(30)]
    assert apart[-1] < 1e-9
    falling = [later / earlier**2 for earlier, later in pairwise(apart) if 1e-6 < earlier < 1e-2]
    assert falling
    assert max(falling) < 1e3


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 12), st.floats(0.1, 1.9))
def test_descent_is_its_loop(steps: int, rate: float) -> None:
    x, y = prompt()
    found = Spectrum.of(x, y).weights(gradient_descent(rate, steps))
    for k in (2, 7):
        a, b, weight = x[1, :k], y[1, :k], torch.zeros(4).double()
        size = rate / torch.linalg.matrix_norm(a.T @ a, 2)
        for _ in range(steps):
            weight = weight - size * a.T @ (a @ weight - b)
        torch.testing.assert_close(found[1, k], weight, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("passes", [1, 3])
def test_online_descent_is_its_loop(passes: int) -> None:
    x, y = prompt()
    found = online_gradient_descent(x, y, 0.8, passes)
    for k in (0, 1, 6, 10):
        weight = torch.zeros(4).double()
        for _ in range(passes):
            for i in range(k):
                weight = weight - 0.8 / 4 * (weight @ x[2, i] - y[2, i]) * x[2, i]
        assert float(found[2, k]) == pytest.approx(float(weight @ x[2, k]), abs=1e-12)


def test_the_lasso_is_scikit_learns() -> None:
    x, y = prompt(d=5, points=12)
    found = lasso(x, y, 0.05, sweeps=3000)
    for k in (1, 4, 8, 11):
        model = Lasso(0.05, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(x[0, :k].numpy(), y[0, :k].numpy())
        assert float(found[0, k]) == pytest.approx(float(model.predict(x[0, k : k + 1].numpy())[0]), abs=1e-5)


def test_nearest_are_scikit_learns() -> None:
    x, y = prompt()
    found = nearest(x, y, 3)
    for k in range(1, 11):
        model = KNeighborsRegressor(min(3, k)).fit(x[0, :k].numpy(), y[0, :k].numpy())
        assert float(found[0, k]) == pytest.approx(float(model.predict(x[0, k : k + 1].numpy())[0]), abs=1e-9)
    assert float(found[0, 0]) == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_grown_tree_is_scikit_learns(depth: int) -> None:
    x, y = prompt(d=3, points=60)
    query = torch.randn(3, 40, 3, generator=torch.Generator().manual_seed(5)).double()
    found = grow(x, y, depth).predict(query)
    for task in range(3):
        model = DecisionTreeRegressor(max_depth=depth).fit(x[task].numpy(), y[task].numpy())
        # scikit-learn compares in float32
        same = np.isclose(found[task].numpy(), model.predict(query[task].numpy()), atol=1e-6)
        assert same.mean() > 0.97


def test_boosting_is_scikit_learns() -> None:
    x, y = prompt(d=3, points=60)
    query = torch.randn(3, 40, 3, generator=torch.Generator().manual_seed(5)).double()
    found = boost(x, y, query, rounds=5, depth=2, rate=0.3)
    for task in range(3):
        model = GradientBoostingRegressor(n_estimators=5, max_depth=2, learning_rate=0.3).fit(
            x[task].numpy(), y[task].numpy()
        )
        same = np.isclose(found[task].numpy(), model.predict(query[task].numpy()), atol=1e-6)
        assert same.mean() > 0.9


def test_a_tree_with_too_few_examples_still_answers() -> None:
    x, y = prompt(points=2)
    query = x[:, :1]
    torch.testing.assert_close(grow(x, y, 4).predict(x), y)
    assert boost(x[:, :1], y[:, :1], query, rounds=2).isfinite().all()


def test_networks_are_fitted() -> None:
    x, y = prompt(d=2, points=30, noise=0.0)
    with torch.no_grad():
        found = fit_networks(
            x.float(), y.float(), x.float(), torch.Generator().manual_seed(0), hidden=40, steps=400, rate=1e-2
        )
    assert float((found - y.float()).square().mean()) < 0.05
