"""Attention as gradient descent in function space (Cheng et al. 2024).

A layer y_j <- y_j - r sum_i h(x_i, x_j) y_i is a step f <- f + r sum_i (y_i - f(x_i)) h(x_i, .) of
functional gradient descent. When h is a positive definite kernel the limit is k^T K^{-1} y: the Bayes
predictor of a Gaussian process.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dualscope.core.registry import Registry
from dualscope.theory.identity import Draw, TwoSides, identity

REFERENCE = "Cheng et al. 2024"

Kernel = Callable[..., Tensor]  # x [n, d], z [m, d], scale -> h(x_i, z_j) [n, m]
KERNELS: Registry[Kernel] = Registry("attention kernel")


@KERNELS.register("linear")
def linear(x: Tensor, z: Tensor, scale: float = 1.0) -> Tensor:
    """x . z"""
    return scale * x @ z.T


@KERNELS.register("relu")
def relu(x: Tensor, z: Tensor, scale: float = 1.0) -> Tensor:
    """relu(x . z); not positive definite."""
    return torch.relu(scale * x @ z.T)


@KERNELS.register("exp")
def exp(x: Tensor, z: Tensor, scale: float = 1.0) -> Tensor:
    """exp(x . z)"""
    return (scale * x @ z.T).exp()


@KERNELS.register("softmax")
def softmax(x: Tensor, z: Tensor, scale: float = 1.0) -> Tensor:
    """exp(x_i . z) over its sum over the keys x; not symmetric, so no kernel of a Gaussian process."""
    return (scale * x @ z.T).softmax(0)


def layers(x: Tensor, y: Tensor, query: Tensor, kernel: str, rate: float, depth: int, scale: float = 1.0) -> Tensor:
    """The attention side: `depth` layers over x [n, d], y [n], query [m, d] that starts at 0. Predictions
    [m].
    """
    points = torch.cat([x, query])
    state = torch.cat([y, y.new_zeros(len(query))])
    h = KERNELS[kernel](x, points, scale)  # [n, n + m]; the layer leaves x as it is
    for _ in range(depth):
        state = state - rate * state[: len(x)] @ h
    return -state[len(x) :]


def functional_gd(
    x: Tensor, y: Tensor, query: Tensor, kernel: str, rate: float, steps: int, scale: float = 1.0
) -> Tensor:
    """The learning side: f = sum_i c_i h(x_i, .), c <- c + r (y - f(x)), then f at query [m, d]: -> [m]."""
    h = KERNELS[kernel]
    coefficients = torch.zeros_like(y)
    for _ in range(steps):
        coefficients = coefficients + rate * (y - coefficients @ h(x, x, scale))
    found: Tensor = coefficients @ h(x, query, scale)
    return found


def bayes(x: Tensor, y: Tensor, query: Tensor, kernel: str, scale: float = 1.0) -> Tensor:
    """k^T K^{-1} y, the noiseless Gaussian process's mean (pseudo-inverse where K has no inverse): [m]."""
    h = KERNELS[kernel]
    found: Tensor = y @ torch.linalg.pinv(h(x, x, scale), hermitian=True) @ h(x, query, scale)
    return found


def layers_are_functional_steps(
    x: Tensor, y: Tensor, query: Tensor, kernel: str, rate: float, depth: int, scale: float = 1.0
) -> TwoSides:
    """Left: attention layers. Right: functional gradient descent. x [n, d], y [n], query [m, d]; both sides
    [m].

    >>> draw = Draw(0)
    >>> x, y, query = draw.normal(14, 5), draw.normal(14), draw.normal(3, 5)
    >>> layers_are_functional_steps(x, y, query, "relu", rate=0.1, depth=7).error < 1e-10
    True
    """
    left = layers(x, y, query, kernel, rate, depth, scale)
    return TwoSides(left, functional_gd(x, y, query, kernel, rate, depth, scale))


def on_sphere(draw: Draw, n: int, d: int = 5) -> Tensor:
    """n points on the unit sphere, [n, d]."""
    points = draw.normal(n, d)
    found: Tensor = points / points.norm(dim=-1, keepdim=True)
    return found


def _sphere_steps(kernel: str, rate: float) -> Callable[[Draw], TwoSides]:
    def check(draw: Draw) -> TwoSides:
        x, query = on_sphere(draw, 14), on_sphere(draw, 3)
        return layers_are_functional_steps(x, draw.normal(14), query, kernel, rate, depth=7)

    return check


for _kernel, _rate, _statement in (
    ("linear", 0.2, "7 linear-attention layers = 7 functional GD steps"),
    ("relu", 0.2, "the same with relu attention"),
    ("exp", 0.05, "the same with exp attention"),
    ("softmax", 0.8, "the same with softmax attention (normalised over the keys)"),
):
    identity(f"functional-gd-{_kernel}", _statement, REFERENCE)(_sphere_steps(_kernel, _rate))


@identity("functional-gd-limit", "many exp-attention layers → kᵀK⁻¹y, the Bayes predictor", REFERENCE)
def _limit(draw: Draw) -> TwoSides:
    x, query, y = on_sphere(draw, 6), on_sphere(draw, 3), draw.normal(6)
    eigenvalues = torch.linalg.eigvalsh(exp(x, x).double())
    rate = float(1 / eigenvalues[-1])
    # Enough layers for the slowest direction to shrink to 1e-14.
    depth = int(32.3 * eigenvalues[-1] / eigenvalues[0]) + 1
    return TwoSides(layers(x, y, query, "exp", rate, depth), bayes(x, y, query, "exp"))
