"""Attention kinds against plain formulas, one query and one token at a time."""

import pytest
import torch
from torch import Tensor

from dualscope.models.attention_kinds import AttentionKind, Momentum, Negative, Regularized, attend, causal_mask


def draw(*shape: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(3)]


def plain(query: Tensor, key: Tensor, value: Tensor, kind: AttentionKind, causal: bool) -> Tensor:
    """One query at a time, one token at a time."""
    n, d = value.shape

    def seen(i: int) -> list[int]:
        return list(range(i + 1)) if causal else list(range(n))

    values = []
    for i in range(n):
        v = value[i]
        if isinstance(kind, Negative):
            ranked = sorted((float(key[i] @ key[j]), j) for j in seen(i) if j != i)[: kind.k]
            if ranked:
                v = v - kind.beta * sum(value[j] for _, j in ranked) / len(ranked)
        values.append(v)
    outputs = []
    for t in range(n):
        logits = torch.stack([query[t] @ key[i] / d**0.5 for i in seen(t)])
        p = torch.softmax(logits, 0)
        if isinstance(kind, Regularized) and kind.form == "dual":
            p[t] = p[t] * (1 - kind.alpha)
        out = sum((p[i] * values[i] for i in seen(t)), torch.zeros(d).double())
        if isinstance(kind, Regularized) and kind.form == "published":
            out = out - kind.alpha * values[t]
        if isinstance(kind, Momentum):
            out = out + sum((kind.eta ** (t - i) * values[i] for i in range(t)), torch.zeros(d).double())
        outputs.append(out)
    return torch.stack(outputs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        AttentionKind(),
        Momentum(eta=0.7),
        Regularized(alpha=0.4),
        Regularized(alpha=0.4, form="dual"),
        Negative(k=2, beta=0.5),
    ],
    ids=str,
)
def test_attend_is_the_plain_formula(kind: AttentionKind, causal: bool) -> None:
    query, key, value = draw(6, 4)
    mask = causal_mask(6, 6, torch.float64) if causal else None
    output, weights = attend(query, key, value, kind, mask)
    torch.testing.assert_close(output, plain(query, key, value, kind, causal), rtol=1e-12, atol=1e-12)
    assert weights.shape == (6, 6)


def test_momentum_is_its_recursion() -> None:
    """m_{t+1} = eta (m_t + v_t), added to the softmax output."""
    query, key, value = draw(7, 3)
    mask = causal_mask(7, 7, torch.float64)
    extra = attend(query, key, value, Momentum(eta=0.5), mask)[0] - attend(query, key, value, AttentionKind(), mask)[0]
    momentum = torch.zeros(3, dtype=torch.float64)
    for t in range(7):
        torch.testing.assert_close(extra[t], momentum, rtol=1e-12, atol=1e-12)
        momentum = 0.5 * (momentum + value[t])


def test_the_dual_form_is_one_step_on_the_regularized_loss() -> None:
    """W0 - eta grad of the dual loss + (alpha / 2 eta) |W|^2; phi is exact on these points."""
    query, key, value = draw(5, 3)
    alpha, eta, t, q, k = 0.3, 0.7, 4, query / 3**0.25, key / 3**0.25
    points = torch.cat([k, q[t : t + 1]])
    spectrum, vectors = torch.linalg.eigh((points @ points.T).exp())
    phi = vectors * spectrum.clamp(min=0).sqrt()  # [points, features]: phi(a) . phi(b) = exp(a . b)
    total = (k @ q[t]).exp().sum()
    weight = torch.outer(value[t], phi[t]) / total  # the query's own token is all that is not a demonstration
    weight.requires_grad_()
    loss = (
        -sum(value[i] @ weight @ phi[i] for i in range(t)) / (eta * total) + alpha / (2 * eta) * weight.square().sum()
    )
    (gradient,) = torch.autograd.grad(loss, weight)
    expected = (weight - eta * gradient) @ phi[-1]
    output, _ = attend(query, key, value, Regularized(alpha=alpha, form="dual"), causal_mask(5, 5, torch.float64))
    torch.testing.assert_close(output[t], expected.detach(), rtol=1e-9, atol=1e-9)
