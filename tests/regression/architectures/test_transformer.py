"""The stacked transformers against plain loops, and the constructions against gradient descent."""

from typing import Any

import pytest
import torch

from dualscope.regression.architectures.constructed import best_eta, best_eta_gamma, gd_transformer, repeat
from dualscope.regression.architectures.transformer import Transformer
from dualscope.regression.baselines import alignment, half_mse
from dualscope.regression.problems import Linear, draw_for, generators
from dualscope.regression.training import Schedule, clip_copies, train
from dualscope.theory import linear_attention_step as vonoswald


@pytest.mark.parametrize("scores", ["linear", "relu", "exp", "softmax"])
@pytest.mark.parametrize(
    ("causal", "recurrent", "heads", "largest"),
    [(False, False, 1, None), (False, True, 2, None), (True, False, 2, None), (True, False, 2, 0.8)],
)
def test_a_layer_is_the_plain_formula(
    scores: Any, causal: bool, recurrent: bool, heads: int, largest: float | None
) -> None:
    model = Transformer(3, 2, generators([0, 1]), scores, recurrent, causal, heads, 0.3, largest)
    with torch.no_grad():
        model.key.add_(0.1)  # keys that are not the queries
    tokens = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(tokens)
    for copy in range(2):
        for task in range(4):
            now = tokens[copy, task]
            for layer in range(2):
                at = 0 if recurrent else layer
                after = now.clone()
                for j in range(5):
                    seen = range(j + 1) if causal else range(4)
                    for head in range(heads):
                        q, k, v, p = (w[copy, at, head] for w in (model.query, model.key, model.value, model.output))
                        products = torch.stack([(k @ now[i]) @ (q @ now[j]) for i in seen])
                        if scores == "softmax":
                            weights = torch.softmax(products, 0)
                        else:
                            h = {"linear": lambda z: z, "relu": torch.relu, "exp": torch.exp}[scores]
                            weights = h(products) / len(seen)
                        after[j] += p @ sum(w * (v @ now[i]) for w, i in zip(weights, seen, strict=True))
                now = after.detach()
                if largest is not None:
                    now = torch.minimum(torch.maximum(now, torch.tensor(-largest)), torch.tensor(largest))
            expected = now if causal else now[-1:]
            torch.testing.assert_close(found[copy, task], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_constructed_layers_are_gradient_descent(depth: int) -> None:
    batch = Linear(d=4, n=6).draw(7, torch.Generator().manual_seed(0))
    model = gd_transformer([0.5, 2.0], depth, 4, 6)
    found = model.predict(repeat(batch, 2).tokens)
    for copy, eta in enumerate((0.5, 2.0)):
        weight = vonoswald.gd_steps(batch.x, batch.y.unsqueeze(-1), torch.zeros(1, 4), eta, depth)
        expected = (weight.squeeze(-2) * batch.query).sum(-1)
        torch.testing.assert_close(found[copy], expected, rtol=1e-4, atol=1e-5)


def test_constructed_layers_are_gd_plus_plus() -> None:
    batch = Linear(d=4, n=6).draw(5, torch.Generator().manual_seed(0))
    found = gd_transformer([2.0], 3, 4, 6, [0.15]).predict(repeat(batch, 1).tokens)[0]
    for task in range(5):
        weight = vonoswald.gd_plus_plus(batch.x[task], batch.y[task, :, None], 2.0, 0.15, 3)
        torch.testing.assert_close(found[task], (weight @ batch.query[task])[0], rtol=1e-4, atol=1e-5)


def test_the_search_finds_the_best_rate() -> None:
    batch = Linear().draw(1000, torch.Generator().manual_seed(0))
    eta = best_eta(batch, 1)
    losses = {
        rate: float(half_mse(gd_transformer([rate], 1, 10, 10).predict, repeat(batch, 1)))
        for rate in (eta - 0.5, eta, eta + 0.5)
    }
    assert min(losses, key=losses.__getitem__) == eta
    assert 5 < eta < 7  # 6.1 in a replication
    two = best_eta(batch, 2)
    plus, gamma = best_eta_gamma(batch, 2, two)
    gd, plus_plus = gd_transformer([two], 2, 10, 10), gd_transformer([plus], 2, 10, 10, [gamma])
    assert half_mse(plus_plus.predict, repeat(batch, 1)) < half_mse(gd.predict, repeat(batch, 1))


def test_a_learner_is_aligned_with_itself() -> None:
    batch, model = draw_for(Linear(d=4, n=6), 9, generators([0])), gd_transformer([2.0], 2, 4, 6)
    found = alignment(model.predict, model.predict, batch)
    assert found["prediction difference"].item() == 0
    assert found["sensitivity distance"].item() == 0
    assert found["sensitivity cosine"].item() == pytest.approx(1)
    assert found["loss"].item() == pytest.approx(half_mse(model.predict, batch).item())


def test_copies_train_as_if_alone() -> None:
    def trained(seeds: list[int]) -> torch.Tensor:
        model, problem = Transformer(4, 1, generators(seeds)), Linear(d=3, n=5)

        def draw(step: int) -> tuple[torch.Tensor, ...]:
            batch = draw_for(problem, 16, generators(seeds, 1, step=step))
            return batch.tokens, batch.target

        def loss(tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return (model.predict(tokens) - target).square().mean(-1)

        train(model, draw, loss, Schedule(5, clip=0.01, decay_to=1e-4))
        return model.value.detach()

    torch.testing.assert_close(trained([3, 5])[1], trained([5])[0], rtol=1e-4, atol=1e-6)


def test_clipping_is_by_copy() -> None:
    weights = torch.nn.Parameter(torch.zeros(2, 3))
    weights.grad = torch.tensor([[3.0, 0.0, 4.0], [0.1, 0.0, 0.0]])
    clip_copies([weights], 1.0)
    torch.testing.assert_close(weights.grad, torch.tensor([[0.6, 0.0, 0.8], [0.1, 0.0, 0.0]]))
