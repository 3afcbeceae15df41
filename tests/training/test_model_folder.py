"""Weights of other sizes: the same function, in and out of context, and smaller gradient steps."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.training.model_folder import rebalance
from dualscope.training.settings import Settings
from dualscope.training.training_loop import make_model, train

SMALL = Settings(steps=2, short_steps=0, batch=2, length=64, layers=2, width=32, heads=2, warmup=1)


def gradients(model: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Of each layer's fused projection: [width, 3 * width]."""
    model.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    return [block.attn.c_attn.weight.grad.clone() for block in model.transformer.h]


def test_the_same_function_with_smaller_gradients() -> None:
    model = make_model(SMALL).double()
    tokens = torch.arange(40)[None]
    logits, before = model(tokens).logits, gradients(model, tokens)
    rebalance(model, (4.0, 1.0))
    assert torch.equal(model(tokens).logits, logits)  # powers of two round nothing
    after = gradients(model, tokens)
    width = SMALL.width
    torch.testing.assert_close(after[0][:, width:] * 4, before[0][:, width:])
    torch.testing.assert_close(after[0][:, :width] / 4, before[0][:, :width])
    torch.testing.assert_close(after[1], before[1])


def test_training_ends_with_it_and_says_so(tmp_path: Path) -> None:
    options = {**SMALL.as_dict(), "mixture": SMALL.mixture}
    plain = train(SMALL, tmp_path / "plain", save_every=0, evaluate_every=0, sequences=1)
    settings = Settings(**{**options, "balance": (2.0, 1.0)})
    balanced = train(settings, tmp_path / "balanced", save_every=0, evaluate_every=0, sequences=1)
    tokens = torch.arange(40)[None]
    assert torch.equal(plain(tokens).logits, balanced(tokens).logits)
    assert '"balance": [' in (tmp_path / "balanced" / "training.json").read_text()


@pytest.mark.parametrize("factors", [(1.0,), (1.0, 0.0)])
def test_a_factor_a_layer(factors: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="one a layer"):
        rebalance(make_model(SMALL), factors)
    with pytest.raises(InputError, match="one a layer"):
        Settings(**{**SMALL.as_dict(), "mixture": SMALL.mixture, "balance": factors})
