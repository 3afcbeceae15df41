"""The nearest that scores come to a target by an inverse temperature and class biases alone: a convex fit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dualscope.metrics.cosine import wide

STEEPEST = 20.0
"""The largest inverse temperature. The smallest is 0: below it the opposite of a target would be the target."""
STEPS = 200
ENOUGH = 1e-13  # nats: what one more step would gain at most


@dataclass(frozen=True)
class Calibration:
    """An inverse temperature and a bias for each outcome."""

    slope: float
    biases: Tensor  # [outcomes]

    def apply(self, scores: Tensor) -> Tensor:
        """Log-probabilities, [queries, outcomes]."""
        return (self.slope * _centred(scores) + self.biases).log_softmax(-1)


def calibration(target: Tensor, scores: Tensor, biases: bool = True) -> Calibration:
    """The t in [0, 20] and b for which softmax(t scores + b) is nearest to ``target``: [queries, outcomes] both.

    ``target`` are probabilities, all above 0; nearest is the least mean KL(target || .). That is convex in t and b, so
    where the best t of all lies outside its bounds, the best one within them is the bound.

    >>> target = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    >>> scores = 4 * target.log() + torch.tensor([5.0, 0.0])
    >>> found = calibration(target, scores)
    >>> round(found.slope, 6), found.apply(scores).exp()[:, 0].round(decimals=6).tolist()
    (0.25, [0.2, 0.6])
    >>> calibration(target, -target.log()).slope  # the opposite tells nothing
    0.0
    """
    target, x = wide(target).cpu(), _centred(scores)
    size = float(x.square().mean().sqrt())
    if size == 0:
        return _at(target, x, 0.0, biases)
    # Scores of the size of 1: one damping suits all.
    slope, found = _newton(target, x / size, biases)
    if slope < 0:
        return _at(target, x, 0.0, biases)
    if slope > STEEPEST * size:
        return _at(target, x, STEEPEST, biases)
    return Calibration(slope / size, found)


def _centred(scores: Tensor) -> Tensor:
    """In float64 on the CPU, less the mean over outcomes, which no probability depends on."""
    x = wide(scores).cpu()
    return x - x.mean(-1, keepdim=True)


def _at(target: Tensor, x: Tensor, slope: float, biases: bool) -> Calibration:
    """The best biases at a given slope."""
    if not biases:
        return Calibration(slope, x.new_zeros(x.shape[-1]))
    if slope == 0:  # the same answer to every query: the target's mean
        return Calibration(slope, target.mean(0).log())
    return Calibration(slope, _newton(target, slope * x, biases, free=False)[1])


def _newton(target: Tensor, x: Tensor, biases: bool, free: bool = True) -> tuple[float, Tensor]:
    """The best slope of x and the best biases; where the slope is not free it is 1."""
    outcomes = x.shape[-1]
    start = [torch.tensor([0.0 if free and biases else 1.0]), target.mean(0).log() * biases * free]
    point = torch.cat([part.to(x) for part in start])
    # What is held stays where it is; all biases together change nothing, so their mean is held as well.
    moves = torch.cat([x.new_full((1,), float(free)), x.new_full((outcomes,), float(biases))])

    def log_probabilities(at: Tensor) -> Tensor:
        return (at[0] * x + at[1:]).log_softmax(-1)

    def loss(at: Tensor) -> Tensor:
        return -(target * log_probabilities(at)).sum(-1).mean()

    value = loss(point)
    for _ in range(STEPS):
        p = log_probabilities(point).exp()
        mean = (p * x).sum(-1, keepdim=True)  # of x under p
        centred = x - mean
        gradient = torch.cat([((p - target) * x).sum(-1).mean()[None], (p - target).mean(0)]) * moves
        across = (p * centred).mean(0)
        hessian = torch.block_diag((p * centred.square()).sum(-1).mean(), p.mean(0).diag() - p.T @ p / len(p))
        hessian[0, 1:] = hessian[1:, 0] = across
        hessian = hessian * moves * moves[:, None]
        hessian[1:, 1:] += biases / outcomes
        damped = hessian + torch.diag(1e-12 + (1 - moves))
        step = -torch.linalg.solve(damped, gradient)
        gain = float(-(gradient @ step))
        if gain < ENOUGH:
            break
        length = 1.0
        while length > 1e-10 and not (near := loss(point + length * step)) <= value - 1e-4 * length * gain:
            length /= 2
        if length <= 1e-10:
            break  # rounding hides what is left to gain
        point, value = point + length * step, near
    return float(point[0]), point[1:]
