"""Feature maps phi with phi(k) . phi(q) = exp(k . q), exactly or nearly: what the softmax dual model is
linear in.

All maps take points [n, d] and give features [n, m].
"""

from collections.abc import Callable
from math import factorial

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.theory.identity import AtMost, Draw, TwoSides, identity

FeatureMap = Callable[[Tensor], Tensor]  # [n, d] -> [n, m]


def exp_kernel(a: Tensor, b: Tensor) -> Tensor:
    """exp(a . b): [n, d], [m, d] -> [n, m]."""
    return (a @ b.T).exp()


def gram_features(points: Tensor, pivot: int | None = None) -> FeatureMap:
    """A square root of the points' Gram matrix: exact on these points, and defined on these points alone.

    With ``pivot`` the features of that point are one coordinate, so that products with it keep their
    relative precision however small they are. That is what a query far from its keys needs.

    >>> points = Draw(0).normal(4, 3)
    >>> for pivot in (None, 3):
    ...     phi = gram_features(points, pivot)(points)
    ...     torch.allclose(phi @ phi.T, exp_kernel(points, points))
    True
    True
    """
    half_square = (points**2).sum(-1, keepdim=True) / 2
    gram = (points @ points.T - half_square - half_square.T).exp()  # exp(-|k - q|^2 / 2), of unit diagonal
    column = gram[:, :0] if pivot is None else gram[:, pivot : pivot + 1]
    values, vectors = torch.linalg.eigh(gram - column @ column.T)
    root = vectors * values.clamp(min=0).sqrt()  # rounding may leave an eigenvalue of -1e-17
    if pivot is not None:
        root[pivot] = 0  # nothing is left of it
    table = half_square.exp() * torch.cat([column, root], -1)
    rows = {tuple(point): i for i, point in enumerate(points.tolist())}

    def phi(asked: Tensor) -> Tensor:
        found = [rows.get(tuple(point)) for point in asked.tolist()]
        if None in found:
            raise InputError("the Gram map knows only the points it was made from; include every k and q")
        return table[found]

    return phi


def random_features(directions: Tensor) -> FeatureMap:
    """Positive random features exp(w_i . z - |z|^2 / 2) / sqrt(m), directions w ~ N(0, I) [m, d]
    (Choromanski et al.).
    """

    def phi(z: Tensor) -> Tensor:
        half_square = (z**2).sum(-1, keepdim=True) / 2
        found: Tensor = (z @ directions.T - half_square).exp() / len(directions) ** 0.5
        return found

    return phi


def taylor_features(order: int) -> FeatureMap:
    """The tensor powers of z up to `order`, over sqrt(p!): exp(k . q) cut after (k . q)^order / order!."""

    def phi(z: Tensor) -> Tensor:
        power = z.new_ones(len(z), 1)
        powers = [power]
        for p in range(1, order + 1):
            power = (power.unsqueeze(-1) * z.unsqueeze(1)).flatten(1)
            powers.append(power / factorial(p) ** 0.5)
        return torch.cat(powers, -1)

    return phi


def kernel_sides(phi: FeatureMap, keys: Tensor, queries: Tensor) -> TwoSides:
    """Left: phi(k) . phi(q). Right: exp(k . q). Both [keys, queries]."""
    return TwoSides(phi(keys) @ phi(queries).T, exp_kernel(keys, queries))


def taylor_remainder(keys: Tensor, queries: Tensor, orders: int) -> AtMost:
    """Left: the largest error of the Taylor map of each order. Right: |t|^(p+1) e^|t| / (p+1)!, t the largest
    |k . q|. Both [orders].
    """
    exact, largest = exp_kernel(keys, queries), (keys @ queries.T).abs().max()
    maps = [taylor_features(order) for order in range(orders)]
    errors = [(phi(keys) @ phi(queries).T - exact).abs().max() for phi in maps]
    bounds = [largest ** (p + 1) * largest.exp() / factorial(p + 1) for p in range(orders)]
    return AtMost(torch.stack(errors), torch.stack(bounds))


def convergence(keys: Tensor, queries: Tensor, counts: list[int], draws: int, draw: Draw) -> Tensor:
    """Error of the random features' kernel at each number of features, root mean square over draws: [counts]."""
    errors = []
    for m in counts:
        maps = [random_features(draw.normal(m, keys.shape[-1])) for _ in range(draws)]
        errors.append(sum(kernel_sides(phi, keys, queries).error ** 2 for phi in maps) / draws)
    return torch.tensor(errors, dtype=torch.float64).sqrt()


def slope(x: Tensor, y: Tensor) -> Tensor:
    """Least-squares slope of log y against log x: [n], [n] -> scalar.

    >>> round(slope(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([8.0, 4.0, 2.0])).item(), 9)
    -1.0
    """
    log_x, log_y = x.double().log(), y.double().log()
    centred = log_x - log_x.mean()
    return (centred * log_y).sum() / (centred**2).sum()


def _points(draw: Draw, size: float = 0.5) -> tuple[Tensor, Tensor]:
    return size * draw.normal(24, 4), size * draw.normal(8, 4)


@identity("features-gram", "φ(k)·φ(q) = exp(k·q) with the Gram map, on its points", "kernel trick", 1e-9, 1e-2)
def _gram(draw: Draw) -> TwoSides:
    keys, queries = _points(draw)
    return kernel_sides(gram_features(torch.cat([keys, queries])), keys, queries)


@identity("features-taylor", "φ(k)·φ(q) ≈ exp(k·q), powers up to 8", "Taylor's theorem", 1e-2, 1e-2, "approximation")
def _taylor(draw: Draw) -> TwoSides:
    return kernel_sides(taylor_features(8), *_points(draw))


@identity(
    "features-taylor-rate",
    "the Taylor map's error ≤ |t|^(p+1) e^|t| / (p+1)!, orders 0…6",
    "Taylor's theorem",
    0.0,
    0.0,
    "inequality",
)
def _taylor_rate(draw: Draw) -> TwoSides:
    return taylor_remainder(*_points(draw), orders=7)


@identity(
    "features-random",
    "φ(k)·φ(q) ≈ exp(k·q), 16384 positive random features",
    "Choromanski et al. 2021",
    0.1,
    0.1,
    "approximation",
)
def _random(draw: Draw) -> TwoSides:
    keys, queries = _points(draw, 0.3)
    return kernel_sides(random_features(draw.normal(16384, 4)), keys, queries)


@identity(
    "features-random-rate",
    "the random features' error falls as m^(−1/2), m = 64…16384 (slope −0.5 ± 0.1)",
    "Choromanski et al. 2021",
    0.2,
    0.2,
    "statistical",
)
def _rate(draw: Draw) -> TwoSides:
    counts = [64, 256, 1024, 4096, 16384]
    # Small points: the error's spread grows as exp |k + q|^2, and a few far points would need many more draws.
    found = slope(torch.tensor(counts), convergence(*_points(draw, 0.25), counts, 24, draw))
    return TwoSides(found, torch.tensor(-0.5, dtype=torch.float64))
