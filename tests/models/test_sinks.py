"""Attention sinks (gpt-oss): weights that a learned logit takes away, and their gradient."""

import pytest
import torch

from dualscope.models import Model
from dualscope.models.capture import capturing
from dualscope.models.session import Session
from tests.models.tiny import WORDS, tiny_tokenizer

TOKENS = torch.tensor([[1, 7, 9, 4, 11, 6, 8, 5]])


@pytest.fixture
def model() -> Model:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    hf = GptOssForCausalLM(config).eval()
    for name, parameter in hf.named_parameters():
        torch.nn.init.normal_(parameter, mean=3.0 if "sinks" in name else 0.0, std=0.3)
    return Model(hf, tiny_tokenizer(), name="sinks")


def keys_and_values(model: Model) -> list[torch.Tensor]:
    return [
        weight for name, weight in model.hf.named_parameters() if "k_proj.w" in name or "v_proj.w" in name
    ]


def test_the_gradient_passes_through_the_sinks(model: Model) -> None:
    weights = keys_and_values(model)
    expected = torch.autograd.grad(model.hf(TOKENS).logits[0, -1, 5], weights)
    with capturing(model, Session()):
        found = torch.autograd.grad(model.hf(TOKENS).logits[0, -1, 5], weights)
    assert len(weights) == 6
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-4
