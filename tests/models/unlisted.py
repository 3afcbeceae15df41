"""Tiny models of architectures that the family table does not list."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.tiny import WORDS, tiny_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
OTHERS = {
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 256},
    "gpt_bigcode": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 256},
}


def sink_model() -> tuple[Any, Any]:
    """gpt-oss, with sinks that take much of the weight."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "sliding_window": 64}
    hf, tokenizer = unlisted_model("gpt_oss", num_key_value_heads=2, attn_implementation="eager", **experts)
    for name, parameter in hf.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter, mean=3.0, std=0.3)
    return hf, tokenizer


def unlisted_model(family: str, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    config = AutoConfig.for_model(
        family,
        vocab_size=len(WORDS),
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        **(OTHERS.get(family, SIZES) | options),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in hf.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return hf.eval(), tiny_tokenizer()
