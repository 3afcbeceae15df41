"""Models of given shapes with random weights: speed does not depend on what the weights say."""

from types import SimpleNamespace

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dualscope.models import Model
from dualscope.models.loading.device_and_precision import dtype_of

SHAPES = {  # layers, width, heads
    "tiny": (4, 128, 4),
    "21m": (10, 384, 6),
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "1.3b": (24, 2048, 32),  # the papers' model, fairseq dense 1.3B
}
VOCABULARY = 50_264


def random_model(shape: str, precision: str = "float32", device: str = "cpu", positions: int = 2048) -> Model:
    """A GPT-2 of one of the shapes; the learned positions reach as far as the papers' model."""
    layers, width, heads = SHAPES[shape]
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=positions, vocab_size=VOCABULARY,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        hf = GPT2LMHeadModel(config).eval()
        hf.to(dtype=dtype_of(precision))
    tokenizer = SimpleNamespace(model_max_length=positions)
    return Model(hf, tokenizer, f"random {shape}", precision=precision, digest=f"random {shape}")
