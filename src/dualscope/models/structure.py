"""A model whose type the family table does not list: its parts by their names, or the reason why it is refused."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from dualscope.core.errors import InputError
from dualscope.models.families import Family, check_entry

_SOFTMAX = ("attention", "full_attention", "sliding_attention", "chunked_attention")
_CHOOSING = ("indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention")


def refuse(hf: Any, kind: str, config: Any) -> None:
    """Architectures that no entry could describe, each with its reason. ``hf`` is a module, or its class."""
    layers = _layer_kinds(config)
    others = {name: n for name, n in layers.items() if name not in _SOFTMAX}
    which = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in others.items())
    of_all = (
        f"{which}, of {config.num_hidden_layers} layers" if which else f"{config.num_hidden_layers} layers"
    )
    if others and all(name in _CHOOSING for name in others):
        raise InputError(
            f"the architecture '{kind}' chooses or compresses the tokens that are attended to ({of_all}): which they "
            "are changes with the context, so there are no scores of a query's own tokens to compare; only decoders "
            "with softmax attention to every token can be measured"
        )
    # A model that may have recurrent layers says so in its class, and in its config which ones it has.
    if others or (getattr(hf, "_is_stateful", False) and not layers):
        raise InputError(
            f"the architecture '{kind}' carries its context in a recurrent state ({of_all}), not in keys and values "
            "of every token: there are no attention scores to compare there, and no keys and values to train; only "
            "decoders with softmax attention in every layer can be measured"
        )
    if shared := getattr(config, "num_kv_shared_layers", None):
        raise InputError(
            f"the architecture '{kind}' has {shared} layers that reuse the keys and values of earlier ones: they have "
            "none of their own to train or to compare, so it cannot be measured"
        )


def _layer_kinds(config: Any) -> Counter[str]:
    """What a config says of its layers, under either of the two names it may have."""
    for name in ("layer_types", "layers_block_type"):
        try:
            found = getattr(config, name, None)
        except (AttributeError, TypeError, ValueError, ZeroDivisionError):  # some are computed
            continue
        if isinstance(found, list | tuple):
            return Counter(map(str, found))
    return Counter()


def by_structure(hf: Any, kind: str, config: Any) -> Family:
    """A family made from familiar names of parts."""
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
    family = Family(
        kind,
        blocks=blocks,
        attention=attention,
        fused=fused,
        output=_child(module, _OUTPUTS) or "",
        final=(f"{base}.{norm}",),
        positions="absolute" if learned else "rotary",
    )
    check_entry(hf, family)
    return family


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
