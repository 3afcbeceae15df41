"""von Oswald's construction inside transformers' GPT-2, against gradient descent itself."""

import pytest
import torch

from dualscope.regression.architectures.constructed import causal_free_mask, embed, gpt2_of
from dualscope.regression.problems import Linear
from dualscope.theory import linear_attention_step as vonoswald


@pytest.mark.parametrize(("layers", "gamma"), [(1, 0.0), (4, 0.0), (3, 0.15)])
def test_gpt2_blocks_are_steps_of_gradient_descent(layers: int, gamma: float) -> None:
    d, n, eta = 4, 7, 1.3
    batch = Linear(d, n).draw(5, torch.Generator().manual_seed(0))
    tokens = batch.tokens.double()
    model = gpt2_of(layers, d, n, eta, gamma)
    with torch.no_grad():
        out = model(inputs_embeds=embed(tokens), attention_mask=causal_free_mask(n), use_cache=False)
    found = -out.last_hidden_state[:, -1, d]
    for task in range(5):
        x, y = batch.x[task].double(), batch.y[task].double()[:, None]
        if gamma:
            weight = vonoswald.gd_plus_plus(x, y, eta, gamma, layers)
        else:
            weight = vonoswald.gd_steps(x, y, torch.zeros(1, d).double(), eta, layers)
        expected = (weight @ batch.query[task].double())[0]
        assert abs(float(found[task] - expected)) <= 1e-10 * max(1.0, abs(float(expected)))


def test_one_causal_block_is_one_step_at_every_token() -> None:
    """Without a mask of our own GPT-2 is causal: a token has seen the examples up to itself."""
    d, n, eta = 3, 6, 0.9
    tokens = Linear(d, n).draw(2, torch.Generator().manual_seed(1)).tokens.double()
    mask = torch.full((n + 1, n + 1), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)[None, None]
    with torch.no_grad():
        out = gpt2_of(1, d, n, eta)(inputs_embeds=embed(tokens), attention_mask=mask, use_cache=False)
    x, y = tokens[..., :d], tokens[..., d]
    for t in range(n + 1):
        step = eta / n * (y[:, : t + 1, None] * x[:, : t + 1]).sum(1)
        expected = y[:, t] - (step * x[:, t]).sum(-1)
        torch.testing.assert_close(out.last_hidden_state[:, t, d], expected, rtol=1e-9, atol=1e-9)
