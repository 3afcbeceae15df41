"""Attention variants read off a changed dual loss (after Ren & Liu): what each change of the loss does to
attention.

Each function gives the attention on the left and, on the right, the dual model trained by autograd on the
changed loss.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dualscope.theory.features import FeatureMap
from dualscope.theory.identity import Draw, TwoSides, identity
from dualscope.theory.softmax_dual import DualModel, Head, dual_model

REFERENCE = "after Ren & Liu"


def _step(dual: DualModel, loss: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = dual.start.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    return dual.start - dual.eta * gradient


def regularized_output(head: Head, alpha: float) -> Tensor:
    """The exact form: the part of the tokens that are no demonstrations, scaled by 1 - alpha. [d_v]"""
    weights = head.scores().softmax(-1)
    scale = torch.ones_like(weights)
    scale[head.demonstrations :] = 1 - alpha
    return (weights * scale) @ head.values


def regularized_published(head: Head, alpha: float, own: int) -> Tensor:
    """The published form, W_V X [softmax - alpha I], for the token numbered `own`: [d_v]. Not the dual of
    the loss.
    """
    return head.output() - alpha * head.values[own]


def regularized(head: Head, phi: FeatureMap, alpha: float, eta: float = 1.0) -> TwoSides:
    """Right: one step on L + (alpha / 2 eta) |W|^2. Both [d_v].

    >>> head = Head.draw(Draw(0))
    >>> regularized(head, head.gram_map(), alpha=0.5).error < 1e-9
    True
    """
    dual = dual_model(head, phi, eta)
    weight = _step(dual, lambda w: dual.loss(w) + alpha / (2 * eta) * (w**2).sum())
    return TwoSides(regularized_output(head, alpha), dual.predict(weight, head.query))


def augment(x: Tensor, up: Tensor, down: Tensor, strength: float) -> Tensor:
    """g(z) = z + c W2 relu(W1 z), for z = W x: [n, d] -> [n, d]; up [hidden, d], down [d, hidden]."""
    return x + strength * torch.relu(x @ up.T) @ down.T


def augmented(
    head: Head,
    value_map: Callable[[Tensor], Tensor],
    key_map: Callable[[Tensor], Tensor],
    phi_of: Callable[[Head], FeatureMap],
) -> TwoSides:
    """Left: attention with values g1(v) and keys g2(k). Right: one step on the loss over the augmented
    pairs. [d_v]
    """
    changed = replace(head, keys=key_map(head.keys), values=value_map(head.values))
    dual = dual_model(changed, phi_of(changed))
    return TwoSides(changed.output(), dual.predict(dual.step(dual.start), head.query))


def negative_output(head: Head, negatives: Tensor, beta: float) -> Tensor:
    """Attention whose demonstrations' values are v_i - beta mean_{j in N(i)} v_j; negatives
    [demonstrations, k] token numbers. Who is a negative is the caller's choice. [d_v]
    """
    values = head.values.clone()
    values[: head.demonstrations] -= beta * head.values[negatives].mean(1)
    return replace(head, values=values).output()


def negative(head: Head, phi: FeatureMap, negatives: Tensor, beta: float) -> TwoSides:
    """Right: one step on L + (beta / (eta D)) sum_i mean_j v_j . W phi(k_i): pushed away from the
    negatives. [d_v]
    """
    dual = dual_model(head, phi)
    pushed = head.values[negatives].mean(1)  # [demonstrations, d_v]

    def loss(weight: Tensor) -> Tensor:
        away = (pushed * (dual.inputs @ weight.T)).sum() / (dual.eta * dual.normaliser)
        return dual.loss(weight) + beta * away

    return TwoSides(negative_output(head, negatives, beta), dual.predict(_step(dual, loss), head.query))


def momentum_term(values: Tensor, eta: float) -> TwoSides:
    """Left: the recursion m_{t+1} = eta (m_t + v_t) from 0. Right: sum_{i<t} eta^(t-i) v_i. Both [n, d] for
    [n, d].
    """
    running = [torch.zeros_like(values[0])]
    for value in values[:-1]:
        running.append(eta * (running[-1] + value))
    steps = torch.arange(len(values), device=values.device)
    distance = steps.unsqueeze(1) - steps  # t - i
    powers = (eta ** distance.clamp(min=0).to(values)) * (distance > 0)
    return TwoSides(torch.stack(running), powers @ values)


@identity("variant-regularized", "L + (α/2η)|W|²: the zero-shot part scaled by 1−α", REFERENCE, 1e-9, 1e-2)
def _regularized(draw: Draw) -> TwoSides:
    head = Head.draw(draw)
    return regularized(head, head.gram_map(), alpha=0.5, eta=0.3)


@identity("variant-augmented", "g₁(v), g₂(k) in the loss: attention over g₁(v), g₂(k)", REFERENCE, 1e-9, 1e-2)
def _augmented(draw: Draw) -> TwoSides:
    head = Head.draw(draw)
    weights = [(draw.weight(8, 4), draw.weight(4, 8)) for _ in range(2)]
    g1, g2 = (lambda z, up=up, down=down: augment(z, up, down, 0.3) for up, down in weights)
    return augmented(head, g1, g2, Head.gram_map)


@identity("variant-negative", "negatives in the loss: values vᵢ − β mean_{j∈N(i)} vⱼ", REFERENCE, 1e-9, 1e-2)
def _negative(draw: Draw) -> TwoSides:
    head = Head.draw(draw)
    negatives = torch.stack([torch.randperm(16, generator=draw.generator)[:3] for _ in range(16)])
    return negative(head, head.gram_map(), negatives, beta=0.5)


@identity("variant-momentum", "mₜ₊₁ = η(mₜ + vₜ) gives Σ_{i<t} η^(t−i) vᵢ", "Dai et al. 2023")
def _momentum(draw: Draw) -> TwoSides:
    return momentum_term(draw.normal(30, 4), eta=0.8)
