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
