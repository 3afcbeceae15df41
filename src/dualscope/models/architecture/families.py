"""Where an architecture keeps its parts. A new architecture is one entry, or none if its structure speaks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from dualscope.core.errors import InputError
from dualscope.core.registry import Registry
from dualscope.models.architecture.parts import Heads, Layout

Positions = Literal["absolute", "rotary", "alibi"]


@dataclass(frozen=True)
class Family:
    """Dotted paths: of the blocks and the final norm in the model, of the attention in a block, of the
    projections in the attention.
    """

    name: str
    blocks: str = "model.layers"
    attention: str = "self_attn"
    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    fused: str | None = None  # one matrix in place of the three, or of keys and values
    layout: Layout = "stacked"  # of its rows: see parts.py
    output: str = "o_proj"
    final: tuple[str, ...] = ("model.norm",)  # from the last block's output to what is unembedded
    positions: Positions = "rotary"
    adapter: str | None = None  # its attention bypasses transformers' interface: see adapters.py
    needs_mask: bool = False  # its model computes with a mask where others leave a plainly causal one out
    scales_queries_first: bool = False  # between their projection and the attention, which then scales no more
    configured: Callable[["Family", Any], "Family"] | None = None  # what a checkpoint's config decides
    tested: bool = False  # against the oracle, by us

    @property
    def relative_positions(self) -> bool:
        return self.positions in ("rotary", "alibi")

    def heads(self, config: Any) -> Heads:
        """How many heads an attention of this family has, and how wide they are."""
        count = int(config.num_attention_heads)
        width = int(getattr(config, "head_dim", None) or config.hidden_size // count)
        if self.layout == "latent":
            return Heads(count, count, int(config.qk_nope_head_dim), int(config.v_head_dim))
        if (shared := getattr(config, "multi_query", None)) is not None:  # GPT-BigCode, Falcon
            grouped = getattr(config, "new_decoder_architecture", False)
            kv = int(config.num_kv_heads) if grouped else 1 if shared else count
        else:
            kv = int(getattr(config, "num_key_value_heads", None) or count)
        return Heads(count, kv, width, width)


FAMILIES: Registry[Family] = Registry("model family")

# Tested too, and found by their structure alone.
BY_STRUCTURE = (
    "apertus", "arcee", "biogpt", "cohere", "cohere2", "dots1", "ernie4_5", "exaone4", "flex_olmo", "gemma", "glm",
    "glm4", "glm4_moe", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "helium", "hunyuan_v1_dense",
    "llama4_text", "ministral", "mixtral", "nemotron", "olmo", "olmo3", "olmoe", "phi", "phimoe", "qwen2_moe",
    "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma",
)  # fmt: skip


def _falcon(family: Family, config: Any) -> Family:
    if config.alibi:
        raise InputError(
            "this Falcon has ALiBi positions, which transformers rounds to bfloat16 (and its eager attention counts "
            "twice): how far a token is then depends on where it stands, so a query without context has no "
            "counterpart; take one with rotary positions (falcon-7b, falcon-40b, falcon2)"
        )
    return family


def _bigcode(family: Family, config: Any) -> Family:
    """Without shared keys and values its rows go head by head."""
    return replace(family, layout="stacked" if config.multi_query else "interleaved")


def _latent(family: Family, config: Any) -> Family:
    """Queries too may be made from a compressed vector."""
    return replace(family, query="q_proj" if config.q_lora_rank is None else "q_b_proj")


# What many have in common.
_gpt2_like = partial(Family, blocks="transformer.h", attention="attn", final=("transformer.ln_f",))
_one_matrix = partial(Family, fused="query_key_value", layout="interleaved", output="dense")
_fused_gpt2_like = partial(_one_matrix, blocks="transformer.h", attention="self_attention", final=("transformer.ln_f",))

for _family in (
    _gpt2_like("gpt2", fused="c_attn", output="c_proj", positions="absolute"),
    Family(
        "opt",
        blocks="model.decoder.layers",
        output="out_proj",
        final=("model.decoder.final_layer_norm", "model.decoder.project_out"),
        positions="absolute",
        scales_queries_first=True,
    ),
    _one_matrix("gpt_neox", blocks="gpt_neox.layers", attention="attention", final=("gpt_neox.final_layer_norm",)),
    *(Family(n) for n in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2")),
    Family("phi3", fused="qkv_proj"),
    Family("xglm", output="out_proj", final=("model.layer_norm",), positions="absolute", adapter="xglm"),
    _gpt2_like("gpt_neo", attention="attn.attention", output="out_proj", positions="absolute", adapter="gpt_neo"),
    _gpt2_like("gptj", output="out_proj", adapter="gptj"),
    _fused_gpt2_like("bloom", positions="alibi", adapter="bloom"),
    _gpt2_like("codegen", fused="qkv_proj", layout="four", output="out_proj", adapter="codegen"),
    _fused_gpt2_like("falcon", adapter="falcon", configured=_falcon),
    Family(
        "mpt",
        blocks="transformer.blocks",
        attention="attn",
        fused="Wqkv",
        output="out_proj",
        final=("transformer.norm_f",),
        positions="alibi",
        adapter="mpt",
        needs_mask=True,
    ),
    _one_matrix("persimmon", final=("model.final_layernorm",)),
    _gpt2_like("gpt_bigcode", fused="c_attn", output="c_proj", positions="absolute", configured=_bigcode),
    # From a compressed vector that keys and values share: it, and the keys' rotary part, are no K or V weights.
    *(
        Family(name, fused="kv_b_proj", layout="latent", configured=_latent)
        for name in ("deepseek_v2", "deepseek_v3", "minicpm3", "glm4_moe_lite")
    ),
):
    FAMILIES.add(_family.name, replace(_family, tested=True))


def family_of(hf: Any) -> Family:
    """The entry of the model's type, or one made from its structure.

    A model of an unlisted type works without an entry where its parts have familiar names; otherwise the error
    says why it cannot be measured, or what could not be found.
    """
    from dualscope.models.architecture.structure import by_structure, check_entry, refuse

    config = hf.config.get_text_config()
    kind = config.model_type
    refuse(hf, kind, config)
    if kind not in FAMILIES:
        return by_structure(hf, kind, config)
    family = FAMILIES[kind]
    if not isinstance(family, Family):
        raise InputError(f"the entry of '{kind}' in the family table is a {type(family).__name__}, not a Family")
    if family.configured is not None:
        family = family.configured(family, config)
    check_entry(hf, family)
    return family


UNSAID = 2048  # what a model with no position table (ALiBi) is given


def max_positions(config: Any, tokenizer: Any) -> int:
    """The smaller of what the model and the tokenizer say; 2048 where neither does (ALiBi).

    >>> from types import SimpleNamespace as Say
    >>> max_positions(Say(max_position_embeddings=1024), Say(model_max_length=10**30))
    1024
    """
    # Llama 4's layers see chunks: within the first one it is like any other model.
    names = ("max_position_embeddings", "max_seq_len", "attention_chunk_size")
    limits = [getattr(config, name, None) for name in names] + [getattr(tokenizer, "model_max_length", None)]
    return min([int(limit) for limit in limits if limit is not None and 0 < limit < 10**9], default=UNSAID)
