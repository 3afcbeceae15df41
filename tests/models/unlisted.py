"""Tiny decoder architectures beside those of ``tiny.py``: those that pass, and those that are refused.

Each is as small as its architecture allows, three layers where it may be, with what is special about it switched on.
"""

from typing import Any

import torch

from tests.models.tiny import CONFIGS, random_model, tiny_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
_GROUPED = SIZES | {"num_key_value_heads": 2}
_NARROW = _GROUPED | {"head_dim": 8}
_SLIDING = _GROUPED | {"sliding_window": 8}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED = _EXPERTS | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
_LATENT = {k: v for k, v in CONFIGS["deepseek_v3"].items() if k != "first_k_dense_replace"}
_LFM2 = {"layer_types": ["conv", "full_attention", "conv"]}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_n_groups": 1}

# A name of ours, where an architecture is here twice, then transformers' name and the configuration.
PASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon, one key for all queries": ("falcon", CONFIGS["falcon"] | {"new_decoder_architecture": False}),
    "falcon, a key for every query": (
        "falcon",
        CONFIGS["falcon"]
        | {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 4, "parallel_attn": False},
    ),
    "mpt, six heads": ("mpt", CONFIGS["mpt"] | {"d_model": 48, "n_heads": 6}),
    "gpt_bigcode, a key for every query": ("gpt_bigcode", CONFIGS["gpt_bigcode"] | {"multi_query": False}),
    "deepseek_v3, with experts": ("deepseek_v3", CONFIGS["deepseek_v3"] | {"first_k_dense_replace": 1}),
    "deepseek_v3, plain queries": ("deepseek_v3", CONFIGS["deepseek_v3"] | {"q_lora_rank": None}),
    "deepseek_v2": ("deepseek_v2", _LATENT | {"first_k_dense_replace": 1}),
    "minicpm3": ("minicpm3", _LATENT),
    "glm4_moe_lite": ("glm4_moe_lite", _LATENT),
    "stablelm": ("stablelm", _GROUPED),
    "granite": ("granite", _GROUPED | {"logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}),
    "granitemoe": ("granitemoe", _GROUPED | _EXPERTS | {"logits_scaling": 2.0}),
    "granitemoehybrid, attention only": (
        "granitemoehybrid",
        _GROUPED | {"layer_types": ["attention"] * 3, "num_local_experts": 0, "shared_intermediate_size": 16} | _MAMBA,
    ),
    "cohere": ("cohere", _GROUPED | {"logit_scale": 0.5}),
    "cohere2": ("cohere2", _NARROW | {"sliding_window": 8, "layer_types": _MIXED}),
    "starcoder2": ("starcoder2", _SLIDING),
    "phi": ("phi", _GROUPED),
    "phimoe": ("phimoe", _GROUPED | _EXPERTS),
    "olmo": ("olmo", _GROUPED | {"clip_qkv": 3.0}),
    "olmo3": ("olmo3", _SLIDING | {"layer_types": _MIXED}),
    "olmoe": ("olmoe", _GROUPED | _EXPERTS),
    "flex_olmo": ("flex_olmo", _GROUPED | _EXPERTS),
    "mixtral": ("mixtral", _SLIDING | _EXPERTS),
    "qwen2_moe": ("qwen2_moe", _GROUPED | _EXPERTS | {"shared_expert_intermediate_size": 16}),
    "qwen3_moe": ("qwen3_moe", _NARROW | _EXPERTS),
    "gpt_oss": ("gpt_oss", _NARROW | _EXPERTS | {"sliding_window": 8, "layer_types": _MIXED}),
    "nemotron": ("nemotron", _NARROW),
    "smollm3": ("smollm3", _GROUPED | {"no_rope_layers": [1, 0, 1]}),
    "glm": ("glm", _NARROW),
    "glm4": ("glm4", _NARROW),
    "glm4_moe": ("glm4_moe", _NARROW | _ROUTED),
    "llama4_text": (
        "llama4_text",
        _NARROW | _EXPERTS | {"intermediate_size_mlp": 48, "attention_chunk_size": 128, "no_rope_layers": [1, 1, 0]},
    ),
    "gemma": ("gemma", _NARROW),
    "vaultgemma": ("vaultgemma", _NARROW | {"sliding_window": 8, "layer_types": _MIXED}),
    "apertus": ("apertus", _GROUPED),
    "arcee": ("arcee", _GROUPED),
    "biogpt": ("biogpt", SIZES),
    "dots1": ("dots1", _NARROW | _ROUTED),
    "ernie4_5": ("ernie4_5", _NARROW),
    "exaone4": ("exaone4", _NARROW | {"sliding_window": 8, "layer_types": _MIXED}),
    "helium": ("helium", _NARROW),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _NARROW),
    "ministral": ("ministral", _NARROW | {"sliding_window": 8, "layer_types": _MIXED}),
    "seed_oss": ("seed_oss", _NARROW),
}

_RECURRENT = r"'{}' carries its context in a recurrent state \({}"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": ("mamba", SIZES, _RECURRENT.format("mamba", "3 .*of 3 layers")),
    "mamba2": ("mamba2", SIZES | {"num_heads": 4, "head_dim": 16, "n_groups": 1}, _RECURRENT.format("mamba2", "3 ")),
    "falcon_mamba": ("falcon_mamba", SIZES, _RECURRENT.format("falcon_mamba", "3 ")),
    "falcon_h1": ("falcon_h1", _GROUPED | _MAMBA | {"mamba_d_ssm": 64}, _RECURRENT.format("falcon_h1", "3 hybrid")),
    "jamba": ("jamba", _GROUPED | {"attn_layer_period": 2, "attn_layer_offset": 1}, _RECURRENT.format("jamba", "2 ")),
    "recurrent_gemma": ("recurrent_gemma", _GROUPED, _RECURRENT.format("recurrent_gemma", "2 recurrent, of 3")),
    "bamba": ("bamba", _GROUPED | _MAMBA, _RECURRENT.format("bamba", "")),
    "granitemoehybrid": (
        "granitemoehybrid",
        _GROUPED | _MAMBA | {"layer_types": ["mamba", "attention", "mamba"]},
        _RECURRENT.format("granitemoehybrid", "2 "),
    ),
    "qwen3_next": ("qwen3_next", _GROUPED | _EXPERTS, _RECURRENT.format("qwen3_next", "3 linear attention")),
    "lfm2": ("lfm2", _GROUPED | _LFM2, _RECURRENT.format("lfm2", "2 conv, of 3 layers")),
    "minimax": ("minimax", _NARROW | _EXPERTS, _RECURRENT.format("minimax", ".*linear attention")),
    "olmo_hybrid": ("olmo_hybrid", _GROUPED, _RECURRENT.format("olmo_hybrid", "2 linear attention")),
    "rwkv": ("rwkv", SIZES, _RECURRENT.format("rwkv", "3 layers")),
    "deepseek_v32": ("deepseek_v32", _LATENT, r"'deepseek_v32' chooses or compresses the tokens .*3 indexed attention"),
    "gemma3n_text": (
        "gemma3n_text",
        _NARROW
        | {
            "num_kv_shared_layers": 1,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 96,
            "laurel_rank": 4,
            "intermediate_size": [48] * 3,
            "activation_sparsity_pattern": [0.0] * 3,
        },
        r"'gemma3n_text' has 1 layers that reuse the keys and values of earlier ones",
    ),
    "diffllama": ("diffllama", _GROUPED, r"6 attention calls were seen for 3 layers.*other than one attention a layer"),
    "falcon, ALiBi": ("falcon", CONFIGS["falcon"] | {"alibi": True}, "ALiBi positions, which transformers rounds"),
    "openai-gpt": ("openai-gpt", CONFIGS["gpt2"], "'openai-gpt' has a fused 'c_attn' matrix whose row order"),
    "gpt_neox_japanese": ("gpt_neox_japanese", CONFIGS["gpt_neox"], "fused 'query_key_value' matrix whose row order"),
    "ctrl": ("ctrl", {"n_embd": 32, "n_layer": 3, "n_head": 4, "dff": 48}, "'ctrl' is not in the family table"),
}


def sink_model() -> tuple[Any, Any]:
    """gpt-oss, with sinks that take much of the weight."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "sliding_window": 64}
    hf, tokenizer = unlisted_model("gpt_oss", num_key_value_heads=2, **experts)
    for name, parameter in hf.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter, mean=3.0, std=0.3)
    return hf, tokenizer


def unlisted_model(kind: str, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    return random_model(kind, SIZES | options, seed=seed), tiny_tokenizer()
