"""Predictors with a closed form, which in-context regression is compared with (after Akyürek et al. 2023).

x [n, d], y [n]; weights [d]; a prediction is query @ weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.theory.identity import Draw, TwoSides, identity

REFERENCE = "Akyürek et al. 2023"


def ols(x: Tensor, y: Tensor) -> Tensor:
    """X^+ y: least squares, of least norm where the examples do not determine it. [d]

    >>> ols(torch.tensor([[1.0, 1.0]]), torch.tensor([2.0])).round(decimals=4)
    tensor([1., 1.])
    """
    found: Tensor = torch.linalg.pinv(x) @ y
    return found


def ridge(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """(X^T X + lam I)^{-1} X^T y; Bayes-optimal at lam = sigma^2 / tau^2 (noise over prior variance). [d]"""
    found: Tensor = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]).to(x), x.T @ y)
    return found


def gd(x: Tensor, y: Tensor, rate: float, steps: int) -> Tensor:
    """Full-batch descent from 0 on (1/2n) sum (w . x_i - y_i)^2. [d]"""
    w = x.new_zeros(x.shape[1])
    for _ in range(steps):
        w = w - rate / len(x) * x.T @ (x @ w - y)
    return w


def sgd(x: Tensor, y: Tensor, rate: float) -> Tensor:
    """One pass from 0, one example a step, in order, on (1/2)(w . x_i - y_i)^2. [d]"""
    w = x.new_zeros(x.shape[1])
    for row, target in zip(x, y, strict=True):
        w = w - rate * (row @ w - target) * row
    return w


def knn(x: Tensor, y: Tensor, query: Tensor, k: int = 3) -> Tensor:
    """The mean target of the k nearest examples: query [m, d] -> [m]. Not linear in the query: no weights.

    >>> knn(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([1.0, 3.0, 7.0]), torch.tensor([[0.4]]), k=2)
    tensor([2.])
    """
    if not 1 <= k <= len(x):
        raise InputError(f"k = {k}: must be between 1 and the number of examples, {len(x)}")
    nearest = torch.cdist(query, x).topk(k, largest=False).indices
    return y[nearest].mean(-1)


def implied_weights(predict: Callable[[Tensor], Tensor], queries: Tensor) -> Tensor:
    """The weights that a predictor behaves as: least squares on its own predictions at queries [m, d]. [d]"""
    found: Tensor = torch.linalg.lstsq(queries, predict(queries).unsqueeze(-1)).solution[:, 0]
    return found


def spd(first: Tensor, second: Tensor) -> Tensor:
    """Squared prediction difference, E (A1 - A2)^2 over all predictions given: scalar."""
    return ((first - second) ** 2).mean()


def ilwd(first: Tensor, second: Tensor) -> Tensor:
    """Implicit linear weight difference, E |w1 - w2|^2: weights [..., d] -> scalar."""
    return ((first - second) ** 2).sum(-1).mean()


def gd_closed_form(x: Tensor, y: Tensor, rate: float, steps: int) -> Tensor:
    """`gd` without its loop: in X's singular directions, (1 - (1 - rate s^2 / n)^steps) / s. [d]"""
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    gain = (1 - (1 - rate * s**2 / len(x)) ** steps) / s
    found: Tensor = vt.T @ (gain * (u.T @ y))
    return found


def posterior_mean(x: Tensor, y: Tensor, noise: float, prior: float) -> Tensor:
    """E[w | x, y] for w ~ N(0, prior^2 I) and noise N(0, noise^2), by conditioning the joint Gaussian. [d]"""
    covariance = prior**2 * x @ x.T + noise**2 * torch.eye(len(x)).to(x)
    found: Tensor = prior**2 * x.T @ torch.linalg.solve(covariance, y)
    return found


@identity("closed-ols", "X⁺y solves the normal equations (n > d)", REFERENCE)
def _ols(draw: Draw) -> TwoSides:
    x, y = draw.normal(20, 5), draw.normal(20)
    return TwoSides(ols(x, y), torch.linalg.solve(x.T @ x, x.T @ y))


@identity("closed-min-norm", "n < d: X⁺y = Xᵀ(XXᵀ)⁻¹y, the interpolant of least norm", REFERENCE)
def _min_norm(draw: Draw) -> TwoSides:
    x, y = draw.normal(5, 12), draw.normal(5)
    return TwoSides(ols(x, y), x.T @ torch.linalg.solve(x @ x.T, y))


@identity("closed-ridge-bayes", "ridge at λ = σ²/τ² = the posterior mean", REFERENCE)
def _ridge(draw: Draw) -> TwoSides:
    x, y, noise, prior = draw.normal(12, 5), draw.normal(12), 0.5, 1.5
    return TwoSides(ridge(x, y, noise**2 / prior**2), posterior_mean(x, y, noise, prior))


@identity("closed-gd", "40 GD steps = the spectral filter (1 − (1 − ηs²/n)^T)/s", REFERENCE)
def _gd(draw: Draw) -> TwoSides:
    x, y = draw.normal(20, 5), draw.normal(20)
    return TwoSides(gd(x, y, 0.2, 40), gd_closed_form(x, y, 0.2, 40))


@identity("closed-gd-limit", "GD from 0, long enough → the minimum-norm interpolant (n < d)", REFERENCE)
def _limit(draw: Draw) -> TwoSides:
    x, y = draw.normal(5, 20), draw.normal(5)
    squares = torch.linalg.svdvals(x.double()) ** 2
    steps = int(32.3 * squares[0] / squares[-1]) + 1
    return TwoSides(gd(x, y, float(len(x) / squares[0]), steps), ols(x, y))


@identity("closed-implied-weights", "weights fitted to ridge's predictions are ridge's own (ILWD 0)", REFERENCE)
def _implied(draw: Draw) -> TwoSides:
    w = ridge(draw.normal(12, 5), draw.normal(12), 0.3)
    return TwoSides(implied_weights(lambda queries: queries @ w, draw.normal(30, 5)), w)
