"""Tiny Llamas in GGUF files, written as llama.cpp's own converter does it."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.models.tiny import random_model

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
MERGES = ("i l", "f il", "fil m", "Ġ film", "P o", "N e")
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"


def tokens() -> list[str]:
    """The special ones, every byte, and what the merges make."""
    return [*SPECIAL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_llama(seed: int = 0, **config: Any) -> Any:
    return random_model("llama", {**SIZES, "vocab_size": len(tokens()), "rms_norm_eps": 1e-5, **config}, seed=seed)


def write_gguf(
    path: Path,
    hf: Any,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    fields: dict[str, int] | None = None,
    begins: bool = True,
) -> Path:
    """A module as a GGUF file: matrices in the quantisation ``kind``, norms in float32; ``fields`` overrule its own.

    ``begins``: whether texts begin with BOS.
    """
    config = hf.config
    writer = gguf.GGUFWriter(path, architecture)
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
    }
    for name, value in (own | (fields or {})).items():
        writer.add_uint32(name if name.startswith("split.") else f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(begins)
    writer.add_pad_token_id(3)
    writer.add_chat_template(TEMPLATE)
    for name, weight in hf.named_parameters():
        data = _as_llama_cpp(name, weight.detach(), config).numpy()
        if data.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(_renamed(name), data)
        else:
            packed = gguf.quantize(np.ascontiguousarray(data), kind)
            writer.add_tensor(_renamed(name), packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _renamed(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
    if name in whole:
        return f"{whole[name]}.weight"
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, *part = name.removesuffix(".weight").split(".")
    return f"blk.{layer}.{PARTS['.'.join(part)]}.weight"


def _as_llama_cpp(name: str, weight: Tensor, config: Any) -> Tensor:
    """llama.cpp rotates neighbours and transformers halves: rows of queries and keys stand in another order."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            return weight.view(count, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return weight.contiguous().to(torch.float32)
