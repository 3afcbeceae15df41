"""Gradient descent on a linear layer is linear attention over its training examples (Irie et al. 2022).

    W_T x = W_0 x + sum_t e_t (x_t . x),    e_t = -eta dL/d(W_t x_t)

The training inputs are the keys, the (negative, scaled) errors are the values, the test input is the query.
The two functions below never share a step: `descend` follows autograd on the weights, `attend` never forms
a weight matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dualscope.theory.identity import Draw, TwoSides, identity

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs [n, out], targets -> scalar
REFERENCE = "Irie et al. 2022; Dai et al. 2023"


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """(1/2n) sum |output - target|^2; outputs and targets [n, out]."""
    return 0.5 * ((outputs - targets) ** 2).sum() / len(outputs)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy; outputs [n, classes], targets [n] class numbers."""
    return functional.cross_entropy(outputs, targets)


@dataclass(frozen=True)
class Recipe:
    """How to descend: `batches` lists the example numbers that each step sees."""

    batches: tuple[tuple[int, ...], ...]
    lr: float = 0.1
    momentum: float = 0.0
    decay: float = 0.0  # decoupled: W <- (1 - lr decay) W before the step

    @classmethod
    def full(cls, n: int, steps: int, lr: float = 0.1, momentum: float = 0.0, decay: float = 0.0) -> "Recipe":
        """Every step sees all n examples."""
        return cls((tuple(range(n)),) * steps, lr, momentum, decay)

    @classmethod
    def one_pass(cls, n: int, lr: float = 0.1, momentum: float = 0.0, decay: float = 0.0) -> "Recipe":
        """One example a step, in order."""
        return cls(tuple((i,) for i in range(n)), lr, momentum, decay)

    def coefficient(self, step: int, until: int) -> float:
        """How much of step's gradient stands in the weights after `until` steps:
        lr sum_{t=step}^{until-1} momentum^(t-step) (1 - lr decay)^(until-1-t).
        """
        kept = 1 - self.lr * self.decay
        return self.lr * sum(self.momentum ** (t - step) * kept ** (until - 1 - t) for t in range(step, until))


def linear_attention(values: Tensor, keys: Tensor, query: Tensor) -> Tensor:
    """V K^T q: values [n, out], keys [n, in], query [..., in] -> [..., out].

    >>> linear_attention(torch.eye(2), torch.eye(2), torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    return (query @ keys.T) @ values


def descend(weight: Tensor, inputs: Tensor, targets: Tensor, loss: Loss, recipe: Recipe) -> Tensor:
    """W_T [out, in] by autograd on the weights: weight [out, in], inputs [n, in], targets [n, ...]."""
    velocity = torch.zeros_like(weight)
    for batch in recipe.batches:
        rows = list(batch)
        leaf = weight.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(inputs[rows] @ leaf.T, targets[rows]), leaf)
        velocity = recipe.momentum * velocity + gradient
        weight = (1 - recipe.lr * recipe.decay) * weight - recipe.lr * velocity
    return weight


@dataclass(frozen=True)
class AttentionMemory:
    """What training left behind, as attention sees it: a value and a key for every example of every step."""

    values: Tensor  # [pairs, out]  e_t, scaled by what momentum and decay did to them
    keys: Tensor  # [pairs, in]
    start: Tensor  # [out, in]  W_0, shrunk by decay

    def __call__(self, query: Tensor) -> Tensor:
        """query [..., in] -> [..., out]."""
        return query @ self.start.T + linear_attention(self.values, self.keys, query)


def attend(weight: Tensor, inputs: Tensor, targets: Tensor, loss: Loss, recipe: Recipe) -> AttentionMemory:
    """The same training without weights: each step's outputs are read by attention over the steps before it."""
    raw: list[Tensor] = []  # -dL/d(output) of each step, [batch, out]

    def memory(until: int) -> AttentionMemory:
        kept = (1 - recipe.lr * recipe.decay) ** until
        values = [recipe.coefficient(step, until) * error for step, error in enumerate(raw)]
        rows = [i for batch in recipe.batches[:until] for i in batch]
        empty = weight.new_zeros(0, len(weight))
        return AttentionMemory(torch.cat([empty, *values]), inputs[rows], kept * weight)

    for step, batch in enumerate(recipe.batches):
        outputs = memory(step)(inputs[list(batch)]).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(outputs, targets[list(batch)]), outputs)
        raw.append(-gradient)
    return memory(len(recipe.batches))


def gd_is_attention(
    weight: Tensor, inputs: Tensor, targets: Tensor, query: Tensor, loss: Loss, recipe: Recipe
) -> TwoSides:
    """Left: W_T x with W_T by gradient descent. Right: W_0 x + linear attention over (inputs, errors).

    weight [out, in], inputs [n, in], targets [n, out] or [n], query [..., in] -> both sides [..., out].

    >>> draw = Draw(0)
    >>> sides = gd_is_attention(draw.weight(2, 3), draw.normal(5, 3), draw.normal(5, 2), draw.normal(3), squared,
    ...                         Recipe.full(5, steps=4))
    >>> sides.error < 1e-12
    True
    """
    left = query @ descend(weight, inputs, targets, loss, recipe).T
    return TwoSides(left, attend(weight, inputs, targets, loss, recipe)(query))


def _regression(draw: Draw, recipe: Recipe) -> TwoSides:
    weight, inputs, query = draw.weight(4, 6), draw.normal(32, 6), draw.normal(7, 6)
    return gd_is_attention(weight, inputs, inputs @ draw.weight(4, 6).T, query, squared, recipe)


@identity("gd-one-step", "(W₀ − η∇L) x = W₀x + Σᵢ eᵢ (xᵢ·x), one full-batch step, squared loss", REFERENCE)
def _one_step(draw: Draw) -> TwoSides:
    return _regression(draw, Recipe.full(32, steps=1))


@identity("gd-full-batch", "W_T x = W₀x + Σₜ eₜ (xₜ·x), 20 full-batch steps = 20·N pairs", REFERENCE)
def _full_batch(draw: Draw) -> TwoSides:
    return _regression(draw, Recipe.full(32, steps=20))


@identity("gd-cross-entropy", "the same for cross-entropy, 32 one-example steps", REFERENCE)
def _cross_entropy(draw: Draw) -> TwoSides:
    weight, inputs, query = draw.weight(5, 6), draw.normal(32, 6), draw.normal(7, 6)
    recipe = Recipe.one_pass(32, lr=0.5)
    return gd_is_attention(weight, inputs, draw.classes(5, 32), query, cross_entropy, recipe)


@identity("gd-momentum", "with momentum μ the coefficient of step i is η Σ_{t≥i} μ^(t−i)", REFERENCE)
def _momentum(draw: Draw) -> TwoSides:
    return _regression(draw, Recipe.one_pass(32, lr=0.02, momentum=0.9))


@identity("gd-weight-decay", "with decay λ, W₀ shrinks by (1−ηλ)^T and step i by (1−ηλ)^(T−1−i)", REFERENCE)
def _decay(draw: Draw) -> TwoSides:
    return _regression(draw, Recipe.one_pass(32, lr=0.05, decay=0.3))


@identity("gd-momentum-decay", "momentum and decay together: η Σ_{t≥i} μ^(t−i) (1−ηλ)^(T−1−t)", REFERENCE)
def _both(draw: Draw) -> TwoSides:
    return _regression(draw, Recipe.full(32, steps=12, momentum=0.6, decay=0.3))
