"""Where an architecture keeps its parts. A new architecture is one entry, or none if its structure speaks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from dualscope.core.errors import InputError
from dualscope.core.registry import Registry


@dataclass(frozen=True)
class Family:
    """Dotted paths: of the blocks and the final norm in the model, of the attention in a block, of the
    projections in the attention."""

    name: str
    blocks: str = "model.layers"
    attention: str = "self_attn"
    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    fused: str | None = None  # one query-key-value matrix in place of the three
    layout: Literal["stacked", "interleaved"] = "stacked"
    output: str = "o_proj"
    final: tuple[str, ...] = ("model.norm",)  # from the last block's output to what is unembedded
    positions: Literal["absolute", "rotary", "alibi"] = "rotary"
    adapter: str | None = None  # its attention bypasses transformers' interface: see adapters.py

    @property
    def relative_positions(self) -> bool:
        return self.positions in ("rotary", "alibi")


FAMILIES: Registry[Family] = Registry("model family")

for _family in (
    Family(
        "gpt2",
        blocks="transformer.h",
        attention="attn",
        fused="c_attn",
        output="c_proj",
        final=("transformer.ln_f",),
        positions="absolute",
    ),
    Family(
        "opt",
        blocks="model.decoder.layers",
        output="out_proj",
        final=("model.decoder.final_layer_norm", "model.decoder.project_out"),
        positions="absolute",
    ),
    Family(
        "gpt_neox",
        blocks="gpt_neox.layers",
        attention="attention",
        fused="query_key_value",
        layout="interleaved",
        output="dense",
        final=("gpt_neox.final_layer_norm",),
    ),
    *(Family(n) for n in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2")),
    Family("phi3", fused="qkv_proj"),
    Family("xglm", output="out_proj", final=("model.layer_norm",), positions="absolute", adapter="xglm"),
    Family(
        "gpt_neo",
        blocks="transformer.h",
        attention="attn.attention",
        output="out_proj",
        final=("transformer.ln_f",),
        positions="absolute",
        adapter="gpt_neo",
    ),
    Family(
        "gptj",
        blocks="transformer.h",
        attention="attn",
        output="out_proj",
        final=("transformer.ln_f",),
        adapter="gptj",
    ),
    Family(
        "bloom",
        blocks="transformer.h",
        attention="self_attention",
        fused="query_key_value",
        layout="interleaved",
        output="dense",
        final=("transformer.ln_f",),
        positions="alibi",
        adapter="bloom",
    ),
):
    FAMILIES.add(_family.name, _family)


def family_of(hf: Any) -> Family:
    """The entry of the model's type, or one made from its structure.

    A model of an unlisted type works without an entry where its parts have familiar names; otherwise the error
    says what could not be found.
    """
    kind = hf.config.get_text_config().model_type
    return FAMILIES[kind] if kind in FAMILIES else _by_structure(hf, kind)


def _by_structure(hf: Any, kind: str) -> Family:
    config = hf.config.get_text_config()
    lists = [
        (path, module)
        for path, module in hf.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers
    ]
    blocks, block_list = _first(iter(lists), kind, f"a list of {config.num_hidden_layers} blocks")
    block = block_list[0]
    attentions = (
        (path, module)
        for path, module in block.named_modules()
        if path and (_child(module, _KEYS) or _child(module, _FUSED)) and _child(module, _OUTPUTS)
    )
    attention, module = _first(
        attentions, kind, f"keys ({', '.join(_KEYS + _FUSED)}) and an output projection"
    )
    fused = None if _child(module, _KEYS) else _child(module, _FUSED)
    shared = getattr(config, "num_key_value_heads", None) == 1  # then there is one order only
    if fused == "query_key_value" or (fused == "c_attn" and not shared):
        raise InputError(
            f"the architecture '{kind}' has a fused '{fused}' matrix whose row order cannot be told from its "
            "structure; add an entry to dualscope.models.families.FAMILIES (docs: how to add a model family)"
        )
    base = blocks.rsplit(".", 1)[0]
    norms = ((n, m) for n, m in hf.get_submodule(base).named_children() if n in _NORMS)
    norm, _ = _first(norms, kind, f"a final norm ({', '.join(_NORMS)})")
    learned = any("position" in n or n == "wpe" for n, _ in hf.get_submodule(base).named_children())
    return Family(
        kind,
        blocks=blocks,
        attention=attention,
        fused=fused,
        output=_child(module, _OUTPUTS) or "",
        final=(f"{base}.{norm}",),
        positions="absolute" if learned else "rotary",
    )


_KEYS = ("k_proj",)
_FUSED = ("qkv_proj", "query_key_value", "c_attn")
_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")
_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "layer_norm")


def _child(module: nn.Module, names: tuple[str, ...]) -> str | None:
    children = dict(module.named_children())
    return next((name for name in names if name in children), None)


def _first(found: Iterator[tuple[str, Any]], kind: str, what: str) -> tuple[str, Any]:
    for item in found:
        return item
    raise InputError(
        f"the architecture '{kind}' is not in the family table, and its structure does not show {what}; "
        "add an entry to dualscope.models.families.FAMILIES (docs: how to add a model family)"
    )
