"""What a module's structure says: that an entry fits, where the parts of an unlisted one are, or why it is refused."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

from torch import nn

from dualscope.core.errors import InputError, suggest
from dualscope.models.architecture.families import Family, Positions
from dualscope.models.architecture.parts import Layout, rows_of
from dualscope.models.capture.adapters import ADAPTERS

_SOFTMAX = ("attention", "full_attention", "sliding_attention", "chunked_attention")
_CHOOSING = ("indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention")


def refuse(hf: Any, kind: str, config: Any) -> None:
    """Architectures that no entry could describe, each with its reason. ``hf`` is a module, or its class."""
    layers = _layer_kinds(config)
    others = {name: n for name, n in layers.items() if name not in _SOFTMAX}
    which = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in others.items())
    of_all = f"{which}, of {config.num_hidden_layers} layers" if which else f"{config.num_hidden_layers} layers"
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
    attention, module = _first(attentions, kind, f"keys ({', '.join(_KEYS + _FUSED)}) and an output projection")
    fused = None if _child(module, _KEYS) else _child(module, _FUSED)
    shared = getattr(config, "num_key_value_heads", None) == 1  # then there is one order only
    if fused == "query_key_value" or (fused == "c_attn" and not shared):
        raise InputError(
            f"the architecture '{kind}' has a fused '{fused}' matrix whose row order cannot be told from its "
            "structure; add an entry to FAMILIES of dualscope.models.architecture.families (docs: how to add a "
            "model family)"
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
        "add an entry to dualscope.models.architecture.families.FAMILIES (docs: how to add a model family)"
    )


def check_entry(hf: nn.Module, family: Family) -> None:
    """Refuse an entry that does not fit the module, in words."""
    _check_word(family, "layout", family.layout, get_args(Layout))
    _check_word(family, "positions", family.positions, get_args(Positions))
    if family.adapter is not None:
        _check_word(family, "adapter", family.adapter, tuple(ADAPTERS))
    blocks = _part(family, "blocks", family.blocks, hf)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks):
        raise InputError(
            f"the family '{family.name}': blocks={family.blocks!r} is a {type(blocks).__name__}, and a list of "
            "blocks (a ModuleList) is needed"
        )
    if family.final and not _is_left_out(hf, family.final[0]):
        _part(family, "final", family.final[0], hf)  # later ones an architecture may leave out (OPT)
    config: Any = hf.config
    heads = family.heads(config.get_text_config())
    for block in blocks:
        attention = _part(family, "attention", family.attention, block)
        _part(family, "output", family.output, attention)
        for role in ("query", "key", "value"):
            rows = rows_of(family.layout, role, heads) if family.fused else None
            field = role if rows is None else "fused"
            projection = _part(family, field, getattr(family, field), attention)
            weight = getattr(projection, "weight", None)
            if weight is None:
                raise InputError(
                    f"the family '{family.name}': {field}={getattr(family, field)!r} is a "
                    f"{type(projection).__name__}, which has no weight"
                )
            found = weight.shape[0 if isinstance(projection, nn.Linear) else 1]
            if rows is not None and found != rows.total:
                raise InputError(
                    f"the family '{family.name}': {field}={family.fused!r} has {found} rows, and {family.layout} "
                    f"rows of {heads.count} query and {heads.kv} key and value heads are {rows.total}; its layout "
                    f"is another (accepted: {', '.join(get_args(Layout))})"
                )


def _is_left_out(hf: nn.Module, path: str) -> bool:
    """Whether a model of the family has None there: OPT-350m, whose norms stand behind, has no final one."""
    part: Any = hf
    for name in path.split("."):
        part = getattr(part, name, False)
    return part is None


def _part(family: Family, field: str, path: str, parent: nn.Module) -> nn.Module:
    try:
        return parent.get_submodule(path)
    except AttributeError:
        known = [name for name, _ in parent.named_modules() if name and not any(map(str.isdigit, name.split(".")))]
        raise InputError(
            f"the family '{family.name}': {field}={path!r} is not in {type(parent).__name__}: {suggest(path, known)}"
        ) from None


def _check_word(family: Family, field: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise InputError(
            f"the family '{family.name}': {field}={value!r} is not accepted; accepted: {', '.join(accepted)}"
        )
