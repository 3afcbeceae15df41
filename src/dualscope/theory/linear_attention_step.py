"""A linear self-attention layer that is one step of gradient descent (von Oswald et al. 2023), and GD++.

Tokens are e_j = (x_j, y_j); the query's is (x, -W0 x). One layer turns every y_j into y_j - dW x_j, where
dW is the step of gradient descent on L(W) = (1/2N) sum |W x_i - y_i|^2 at W0. The same layer K times is K
steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualscope.theory.identity import Draw, TwoSides, identity

REFERENCE = "von Oswald et al. 2023"


@dataclass(frozen=True)
class Layer:
    """e_j <- e_j + P V K^T q_j, keys and values from all tokens but the last (the query). All matrices
    [dim, dim].
    """

    key: Tensor
    query: Tensor
    value: Tensor
    projection: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens [..., n + 1, dim] -> the same shape; the query is the last."""
        context = tokens[..., :-1, :]
        scores = (tokens @ self.query.T) @ (context @ self.key.T).mT  # [..., n + 1, n]
        return tokens + scores @ (context @ self.value.T) @ self.projection.T


def gd_layer(start: Tensor, eta: float, n: int, gamma: float = 0.0) -> Layer:
    """The construction. start = W0 [n_y, n_x], n demonstrations; gamma > 0 gives GD++.

    >>> gd_layer(torch.zeros(1, 2), eta=1.0, n=4).projection.diagonal()
    tensor([0.2500, 0.2500, 0.2500])
    """
    n_y, n_x = start.shape
    inputs = torch.block_diag(torch.eye(n_x).to(start), torch.zeros(n_y, n_y).to(start))
    value = torch.zeros_like(inputs)
    value[n_x:, :n_x], value[n_x:, n_x:] = start, -torch.eye(n_y).to(start)
    scale = start.new_full((n_x + n_y,), eta / n)
    if gamma:
        value[:n_x, :n_x] = torch.eye(n_x).to(start)
        scale[:n_x] = -gamma
    return Layer(inputs, inputs, value, torch.diag(scale))


def tokens_of(x: Tensor, y: Tensor, query: Tensor, start: Tensor) -> Tensor:
    """x [..., n, n_x], y [..., n, n_y], query [..., n_x], W0 [n_y, n_x] -> tokens [..., n + 1, n_x + n_y]."""
    last = torch.cat([query, -query @ start.T], -1).unsqueeze(-2)
    return torch.cat([torch.cat([x, y], -1), last], -2)


def prediction(tokens: Tensor, n_y: int) -> Tensor:
    """Minus the y entries of the query's token: [..., n + 1, dim] -> [..., n_y]."""
    return -tokens[..., -1, -n_y:]


def gd_steps(x: Tensor, y: Tensor, start: Tensor, eta: float, steps: int) -> Tensor:
    """W after plain gradient descent: x [..., n, n_x], y [..., n, n_y], start [n_y, n_x] -> [..., n_y, n_x]."""
    weight = start.expand(*x.shape[:-2], *start.shape)
    for _ in range(steps):
        weight = weight - eta / x.shape[-2] * (x @ weight.mT - y).mT @ x
    return weight


def gd_plus_plus(x: Tensor, y: Tensor, eta: float, gamma: float, steps: int) -> Tensor:
    """W after GD++ from 0: each step descends on the inputs H x, then curves them, H <- (I - gamma H X X^T
    H^T) H.

    x [n, n_x], y [n, n_y] -> [n_y, n_x]: GD++ is still one linear predictor, sum_t dW_t H_t.
    """
    curved = torch.eye(x.shape[-1]).to(x)
    weight = x.new_zeros(y.shape[-1], x.shape[-1])
    for _ in range(steps):
        seen = x @ curved.T
        step = eta / len(x) * (y - x @ weight.T).T @ seen  # dW_t [n_y, n_x]
        weight = weight + step @ curved
        curved = curved - gamma * (seen.T @ seen) @ curved
    return weight


def layers_are_steps(x: Tensor, y: Tensor, query: Tensor, start: Tensor, eta: float, depth: int = 1) -> TwoSides:
    """Left: the query's prediction and every residual after `depth` layers. Right: W x and y - (W - W0) x
    after GD.

    >>> draw = Draw(0)
    >>> x, y, query, start = draw.normal(10, 3), draw.normal(10, 1), draw.normal(3), draw.normal(1, 3)
    >>> layers_are_steps(x, y, query, start, eta=0.1, depth=4).error < 1e-12
    True
    """
    tokens, layer = tokens_of(x, y, query, start), gd_layer(start, eta, len(x))
    for _ in range(depth):
        tokens = layer(tokens)
    weight = gd_steps(x, y, start, eta, depth)
    left = torch.cat([tokens[:-1, x.shape[-1] :], prediction(tokens, len(start)).unsqueeze(0)])
    right = torch.cat([y - x @ (weight - start).T, (query @ weight.T).unsqueeze(0)])
    return TwoSides(left, right)


def layers_are_gd_plus_plus(x: Tensor, y: Tensor, query: Tensor, eta: float, gamma: float, depth: int) -> TwoSides:
    """Left: the query's prediction after `depth` GD++ layers. Right: W x after `depth` GD++ steps from 0."""
    start = x.new_zeros(y.shape[-1], x.shape[-1])
    tokens, layer = tokens_of(x, y, query, start), gd_layer(start, eta, len(x), gamma)
    for _ in range(depth):
        tokens = layer(tokens)
    return TwoSides(prediction(tokens, len(start)), query @ gd_plus_plus(x, y, eta, gamma, depth).T)


def _data(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    x = draw.uniform(11, 10) - 0.5
    return x[:-1], x[:-1] @ draw.normal(2, 10).T, x[-1]


@identity("vonoswald-one-layer", "one constructed layer = one GD step, from any W₀ (query and residuals)", REFERENCE)
def _one(draw: Draw) -> TwoSides:
    x, y, query = _data(draw)
    return layers_are_steps(x, y, query, draw.weight(2, 10), eta=3.0)


@identity("vonoswald-k-layers", "the same layer 12 times = 12 GD steps", REFERENCE)
def _deep(draw: Draw) -> TwoSides:
    x, y, query = _data(draw)
    return layers_are_steps(x, y, query, draw.weight(2, 10), eta=3.0, depth=12)


@identity("vonoswald-gd++", "5 GD++ layers = 5 GD steps on inputs curved by (I − γXXᵀ)", REFERENCE)
def _plus_plus(draw: Draw) -> TwoSides:
    x, y, query = _data(draw)
    return layers_are_gd_plus_plus(x, y, query, eta=3.0, gamma=0.175, depth=5)
