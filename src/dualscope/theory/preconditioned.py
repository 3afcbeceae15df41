"""Linear attention as preconditioned gradient descent (Ahn et al. 2023), and the best preconditioner for
one layer.
"""

import torch
from torch import Tensor

from dualscope.theory.identity import Draw, TwoSides, identity

REFERENCE = "Ahn et al. 2023"


def prompt_matrix(x: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """Z: columns (x_i, y_i), then (x, 0). x [n, d], y [n], query [d] -> [d + 1, n + 1]."""
    top = torch.cat([x, query.unsqueeze(0)]).T
    return torch.cat([top, torch.cat([y, y.new_zeros(1)]).unsqueeze(0)])


def layer(z: Tensor, preconditioner: Tensor) -> Tensor:
    """Z + (1/n) P Z M (Z^T Q Z), P = e e^T on the last coordinate, Q = -[[A, 0], [0, 0]], M masks the query.

    z [d + 1, n + 1], preconditioner A [d, d].
    """
    n = z.shape[1] - 1
    p = torch.zeros(len(z), len(z)).to(z)
    p[-1, -1] = 1
    q = torch.zeros_like(p)
    q[:-1, :-1] = -preconditioner
    mask = torch.eye(n + 1).to(z)
    mask[-1, -1] = 0
    return z + p @ z @ mask @ (z.T @ q @ z) / n


def preconditioned_gd(x: Tensor, y: Tensor, preconditioners: list[Tensor]) -> Tensor:
    """w <- w - A^T grad R(w) from 0, R(w) = (1/2n) sum (w . x_i - y_i)^2, gradient by autograd: -> [d]."""
    w = x.new_zeros(x.shape[1])
    for a in preconditioners:
        leaf = w.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(((x @ leaf - y) ** 2).mean() / 2, leaf)
        w = w - a.T @ gradient
    return w


def layers_are_preconditioned_steps(x: Tensor, y: Tensor, query: Tensor, preconditioners: list[Tensor]) -> TwoSides:
    """Left: -Z[-1, -1] after one layer for each A. Right: w . query after the same number of steps. Both
    scalars.

    >>> draw = Draw(0)
    >>> steps = [draw.weight(3, 3) for _ in range(4)]
    >>> layers_are_preconditioned_steps(draw.normal(9, 3), draw.normal(9), draw.normal(3), steps).error < 1e-12
    True
    """
    z = prompt_matrix(x, y, query)
    for a in preconditioners:
        z = layer(z, a)
    return TwoSides(-z[-1, -1], preconditioned_gd(x, y, preconditioners) @ query)


def optimal_preconditioner(covariance: Tensor, n: int) -> Tensor:
    """A* of one layer for x ~ N(0, covariance), w ~ N(0, I): the eigenvalue formula. [d, d] -> [d, d].

    >>> optimal_preconditioner(torch.eye(2), n=10)  # 1 / (11/10 + 2/10)
    tensor([[0.7692, 0.0000],
            [0.0000, 0.7692]])
    """
    values, vectors = torch.linalg.eigh(covariance)
    best = 1 / ((n + 1) / n * values + values.sum() / n)
    found: Tensor = (vectors * best) @ vectors.T
    return found


def one_layer_risk(a: Tensor, covariance: Tensor, n: int) -> Tensor:
    """E (prediction - w . x)^2 of one layer, exactly: Gaussian x with this covariance, w ~ N(0, I). Scalar.

    It is tr(S Aᵀ E[C²] A) − 2 tr(S Aᵀ S) + tr(S) with C the sample covariance, E[C²] = ((n+1) S² + tr(S) S) / n.
    """
    s = covariance
    second = ((n + 1) * s @ s + s.trace() * s) / n
    # The layer applies A^T; A* is symmetric, but the risk is asked for any A.
    return (s @ a.T @ second @ a).trace() - 2 * (s @ a.T @ s).trace() + s.trace()


def _covariance(draw: Draw, d: int = 5) -> Tensor:
    root = draw.weight(d, d)
    return root @ root.T + torch.eye(d).to(root) / 2


@identity("preconditioned-gd", "4 linear-attention layers = 4 steps w ← w − Aᵀ∇R(w), A any matrix", REFERENCE)
def _layers(draw: Draw) -> TwoSides:
    x = draw.normal(20, 5)
    steps = [0.3 * draw.weight(5, 5) for _ in range(4)]
    return layers_are_preconditioned_steps(x, x @ draw.normal(5), draw.normal(5), steps)


@identity("preconditioned-optimum", "A* = U diag(1/(((n+1)/n)λᵢ + Σλ/n)) Uᵀ minimises the exact risk", REFERENCE)
def _optimum(draw: Draw) -> TwoSides:
    covariance, n, d = _covariance(draw), 20, 5
    # The risk is quadratic in A, so one Newton step from 0, by autograd, is its minimiser.
    risk = lambda a: one_layer_risk(a.reshape(d, d), covariance, n)  # noqa: E731
    zero = torch.zeros(d * d).to(covariance)
    gradient = torch.autograd.functional.jacobian(risk, zero)
    hessian = torch.autograd.functional.hessian(risk, zero)
    newton = -torch.linalg.solve(hessian, gradient).reshape(d, d)
    return TwoSides(optimal_preconditioner(covariance, n), newton)
