"""Tiny random models of every supported architecture, and a word-level tokenizer, for tests.

``tiny_model("llama", torch.float64, seed=3)`` gives a Hugging Face module in eval mode and its tokenizer.
Weights are drawn larger than the architectures' own initialisers would: attention is far from uniform, and
an error in one score shows. Where a family has sliding windows, local layers or softcaps, they are on; the
window (8 tokens) is shorter than any useful context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WINDOW = 8
POSITIONS = 256
_LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS},
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": POSITIONS,
        "word_embed_proj_dim": 32,
    },
    "gpt_neox": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": POSITIONS,
    },
    "llama": dict(_LLAMA_LIKE),
    "mistral": dict(_LLAMA_LIKE, sliding_window=WINDOW),
    "qwen2": {k: v for k, v in _LLAMA_LIKE.items() if k != "head_dim"},
    "qwen3": dict(_LLAMA_LIKE, head_dim=16),
    "gemma2": dict(
        _LLAMA_LIKE,
        head_dim=16,
        sliding_window=WINDOW,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        query_pre_attn_scalar=24,
    ),
    "gemma3_text": dict(
        _LLAMA_LIKE,
        head_dim=16,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi3": {k: v for k, v in _LLAMA_LIKE.items() if k != "head_dim"} | {"sliding_window": WINDOW},
    "olmo2": {k: v for k, v in _LLAMA_LIKE.items() if k != "head_dim"},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 3, "attention_heads": 4, "max_position_embeddings": POSITIONS},
    "gpt_neo": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": WINDOW,
        "max_position_embeddings": POSITIONS,
    },
    "gptj": {"n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4, "n_positions": POSITIONS},
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4},
    "codegen": {"n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4, "n_positions": POSITIONS},
    "falcon": {  # two queries share a key, as in falcon-40b
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "bias": True,
        "max_position_embeddings": POSITIONS,
    },
    "mpt": {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": POSITIONS},
    "persimmon": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": POSITIONS,
    },
    "gpt_bigcode": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS},
    "deepseek_v3": {  # keys of 12, values of 6
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 14,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 3,  # routers compute in float32, whatever the model
        "max_position_embeddings": POSITIONS,
    },
}
FAMILIES = tuple(CONFIGS)

_WORDS = [
    "Sentence",
    "Review",
    "Text",
    "Input",
    "Output",
    "Label",
    "Question",
    "Answer",
    "Premise",
    "Hypothesis",
    "Type",
    "Sentiment",
    "Positive",
    "Negative",
    "Neutral",
    "Very",
    "True",
    "False",
    "Yes",
    "No",
    "Maybe",
    "positive",
    "negative",
    "good",
    "bad",
    "great",
    "terrible",
    "subjective",
    "objective",
    "the",
    "a",
    "an",
    "is",
    "was",
    "not",
    "and",
    "of",
    "film",
    "movie",
    "it",
    ":",
    ",",
    ".",
    "?",
    "!",
]
WORDS = ("<unk>", "<s>", "</s>", "<pad>", *_WORDS, *(f"w{i}" for i in range(96 - len(_WORDS) - 4)))


def tiny_tokenizer(bos: bool = True) -> PreTrainedTokenizerFast:
    """Words and punctuation marks, one id each, unknown words one id: "Very Positive" is two tokens."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        pad_token="<pad>",
    )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """XGLM adds position embeddings in torch's default dtype: a float64 run needs float64 there too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tiny_model(
    family: str, dtype: torch.dtype = torch.float32, seed: int = 0, bos: bool = True, **config: Any
) -> tuple[Any, PreTrainedTokenizerFast]:
    """A random module of this family in eval mode, and its tokenizer; ``config`` overrides the table."""
    return random_model(family, CONFIGS[family] | config, dtype, seed), tiny_tokenizer(bos)


def random_model(kind: str, options: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A module of any architecture that transformers has, in eval mode, its weights drawn large."""
    settings = AutoConfig.for_model(
        kind,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        attn_implementation="eager",
        **{"vocab_size": len(WORDS), **options},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Always drawn in float32, so that a family's float32 and float64 models have the same weights.
        hf = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
        for name, parameter in hf.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
            elif "norm" in name or "ln_" in name:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
            else:
                torch.nn.init.normal_(parameter, std=0.1)
    hf = hf.to(dtype).eval()
    if dtype == torch.float64 and getattr(hf.config, "num_experts_per_tok", None):
        hf.set_experts_implementation("eager")  # the grouped product of experts knows no float64
    return hf
