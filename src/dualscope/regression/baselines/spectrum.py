"""Least squares and its relatives at every length of a prompt, from one eigendecomposition each.

With k examples, S = sum x_i x_i^T = U diag(s) U^T and b = sum x_i y_i. Least squares, ridge, gradient descent and
Newton's iteration all have weights U f(s) U^T b; only the filter f differs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Filter = Callable[[Tensor], Tensor]  # eigenvalues [..., d] -> [..., d]
RANK = 1e-10  # eigenvalues below this share of the largest are rounding


@dataclass(frozen=True)
class Spectrum:
    """Of prompts [...]: for every k from 0 to points - 1, what the first k examples say. Float64."""

    values: Tensor  # [..., points, d]
    vectors: Tensor  # [..., points, d, d]
    moments: Tensor  # [..., points, d]: b
    x: Tensor  # [..., points, d]: the inputs that are asked about

    @classmethod
    def of_last(cls, x: Tensor, y: Tensor) -> "Spectrum":
        """Of the last point alone, from all examples before it: points is 1."""
        x, y = x.detach().cpu().double(), y.detach().cpu().double()
        shown, answers = x[..., :-1, :], y[..., :-1, None]
        values, vectors = torch.linalg.eigh(shown.mT @ shown)
        moments = (shown.mT @ answers).squeeze(-1)
        return cls(values.clamp(min=0).unsqueeze(-2), vectors.unsqueeze(-3), moments.unsqueeze(-2), x[..., -1:, :])

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Spectrum":
        """x [..., points, d], y [..., points]; on the CPU, whose eigensolver is the better for many small ones."""
        x, y = x.detach().cpu().double(), y.detach().cpu().double()
        outer = (x.unsqueeze(-1) * x.unsqueeze(-2)).cumsum(-3)
        inner = torch.cat([torch.zeros_like(outer[..., :1, :, :]), outer[..., :-1, :, :]], -3)
        sums = (x * y.unsqueeze(-1)).cumsum(-2)
        moments = torch.cat([torch.zeros_like(sums[..., :1, :]), sums[..., :-1, :]], -2)
        values, vectors = torch.linalg.eigh(inner)
        return cls(values.clamp(min=0), vectors, moments, x)

    def weights(self, kept: Filter) -> Tensor:
        """[..., points, d]: those learned from the first k examples."""
        turned = (self.vectors.mT @ self.moments.unsqueeze(-1)).squeeze(-1)
        found = kept(self.values) * turned
        return (self.vectors @ found.unsqueeze(-1)).squeeze(-1)

    def predict(self, kept: Filter) -> Tensor:
        """[..., points]: the guess for each input from the examples before it."""
        return (self.weights(kept) * self.x).sum(-1)


def _largest(values: Tensor) -> Tensor:
    return values.amax(-1, keepdim=True).clamp(min=1e-300)


def _inverse(values: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """``share`` / s where the examples say anything, and 0 elsewhere: weights of least norm."""
    return torch.where(values > RANK * _largest(values), share / values.clamp(min=1e-300), 0.0)


def least_squares(values: Tensor) -> Tensor:
    """X^+ y."""
    return _inverse(values)


def ridge(penalty: float) -> Filter:
    return lambda values: 1 / (values + penalty)


def gradient_descent(rate: float, steps: int) -> Filter:
    """``steps`` from 0 on (1/2) sum (w . x_i - y_i)^2, at ``rate`` / the largest eigenvalue of S.

    (1 - (1 - rate s / s_max)^steps) / s; a rate below 2 converges whatever the inputs.
    """

    def kept(values: Tensor) -> Tensor:
        return _inverse(values, 1 - (1 - rate * values / _largest(values)) ** steps)

    return kept


def newton(steps: int) -> Filter:
    """Newton's iteration for S^+: M_0 = S / s_max^2, M <- 2 M - M S M; w = M b.

    In S's basis 1 - M s squares itself at every step: it is (1 - (s / s_max)^2)^(2^steps).
    """

    def kept(values: Tensor) -> Tensor:
        return _inverse(values, 1 - (1 - (values / _largest(values)) ** 2) ** (2**steps))

    return kept


def online_gradient_descent(x: Tensor, y: Tensor, rate: float, passes: int = 1) -> Tensor:
    """One example a step, in order, ``passes`` times over the first k: the guess for every x_k, [..., points].

    w <- w - rate (w . x_i - y_i) x_i / d. The first pass over k examples is the first over k + 1 without its last step.
    """
    x, y = x.detach().cpu().double(), y.detach().cpu().double()
    points, d = x.shape[-2:]
    every = x.new_zeros(*x.shape[:-2], points, d)  # weights by k
    for _ in range(passes):
        for i in range(points - 1):
            row = x[..., i, None, :]
            later = every[..., i + 1 :, :]  # those that have seen example i
            error = (later * row).sum(-1, keepdim=True) - y[..., i, None, None]
            every = torch.cat([every[..., : i + 1, :], later - rate / d * error * row], -2)
    return (every * x).sum(-1)
