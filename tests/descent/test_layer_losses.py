"""The residual stream right after attention, wherever an architecture adds it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.descent.layer_losses import visiting
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from tests.learners.setting import wrapped

# What is fed exactly that stream, by family.
FED = {
    "gpt2": "ln_2",
    "opt": "final_layer_norm",
    "llama": "post_attention_layernorm",
    "mistral": "post_attention_layernorm",
    "qwen3": "post_attention_layernorm",
    "phi3": "post_attention_layernorm",
    "gemma2": "pre_feedforward_layernorm",
    "gemma3_text": "pre_feedforward_layernorm",
    "olmo2": "mlp",
    "xglm": "final_layer_norm",
    "gpt_neo": "ln_2",
    "bloom": "post_attention_layernorm",
    "gpt_neox": "post_attention_layernorm",
}


@pytest.mark.parametrize(("family", "fed"), FED.items())
def test_stream_after_attention(family: str, fed: str) -> None:
    options: dict[str, Any] = {"use_parallel_residual": False} if family == "gpt_neox" else {}
    model = wrapped(family, **options)
    said: list[Tensor] = []
    seen: list[Tensor] = []
    handles = [
        block.get_submodule(fed).register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(0, -2)))
        for block in model.blocks
    ]

    def visit(layer: int, stream: Tensor) -> bool:
        assert layer == len(said)
        said.append(stream[0])
        return False

    with torch.no_grad(), model.running(), capturing(model, Session()), visiting(model, "attention", visit):
        model.forward(torch.tensor([[1, 5, 9, 13, 20]]))
    for handle in handles:
        handle.remove()
    assert len(said) == len(seen) == model.n_layers
    for ours, theirs in zip(said, seen, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_block_outputs_flow_on_unchanged() -> None:
    model = wrapped("gptj")
    tokens = torch.tensor([[1, 5, 9, 13, 20]])
    with torch.no_grad(), model.running(), capturing(model, Session()):
        plain = model.forward(tokens)
        with visiting(model, "block", lambda layer, stream: True):  # "moved", so every block runs twice
            again = model.forward(tokens)
    assert torch.equal(plain, again)
