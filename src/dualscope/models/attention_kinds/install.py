"""An attention kind in a Hugging Face model: switched on, recorded in its configuration, restored."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.attention_kinds.attend import attend
from dualscope.models.attention_kinds.augmented import Adapter, Augmented
from dualscope.models.attention_kinds.kind import AttentionKind, make_kind
from dualscope.models.capture.kernel import for_every_head, register
from dualscope.models.families import Family, family_of
from dualscope.models.parts import Qkv, rows_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "dualscope-attention-kind"
_ADAPTERS = "dualscope_adapters"
_KIND = "_dualscope_kind"


def apply(hf: "PreTrainedModel", options: Mapping[str, Any]) -> AttentionKind:
    """Make a model's attention the kind that ``options`` describe, and write them to its configuration.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> small = dict(n_layer=1, n_embd=8, n_head=2, vocab_size=11, bos_token_id=0, eos_token_id=0)
    >>> hf = GPT2LMHeadModel(GPT2Config(**small))
    >>> apply(hf, {"name": "momentum", "eta": 0.5})
    Momentum(eta=0.5)
    >>> hf.config.dualscope_attention
    {'name': 'momentum', 'eta': 0.5}
    """
    kind, family = make_kind(options), family_of(hf)
    if family.adapter is not None or not hf._can_set_attn_implementation():
        raise InputError(
            "attention kinds need transformers' attention interface, which the architecture "
            f"'{family.name}' does not use; train a gpt2 or llama model instead"
        )
    for block in hf.get_submodule(family.blocks).children():
        module = block.get_submodule(family.attention)
        module.__dict__[_KIND] = kind  # not a submodule: nothing to save but the configuration
        for path in {family.fused} if family.fused else {family.key, family.value}:
            _adapt(module.get_submodule(path), path, family, hf.config.get_text_config(), kind)
    register(NAME, _attention)
    hf.set_attn_implementation(NAME)
    hf.config.dualscope_attention = kind.described()
    return kind


def restore(hf: "PreTrainedModel", files: Sequence[Path] = ()) -> AttentionKind | None:
    """Apply the kind that a loaded model's configuration records, with the adapters that its files hold, if any.

    None, and nothing done, where it records none.
    """
    options = getattr(hf.config, "dualscope_attention", None)
    if options is None:
        return None
    kind = apply(hf, options)
    wanted = {name: tensor for name, tensor in hf.state_dict().items() if f".{_ADAPTERS}." in name}
    for file in files if wanted else ():
        with safe_open(file, framework="pt") as saved:
            for name in wanted.keys() & set(saved.keys()):
                wanted.pop(name).copy_(saved.get_tensor(name))
    if wanted:
        raise InputError(
            f"the model's configuration asks for {kind.described()}, but {len(wanted)} of its weights, "
            f"such as '{min(wanted)}', are not in its files; train it again, or remove "
            "'dualscope_attention' from config.json to read it without"
        )
    return kind


def installed(module: nn.Module) -> AttentionKind | None:
    """The kind that ``apply`` gave to an attention module, or None."""
    return module.__dict__.get(_KIND)


def _attention(
    module: nn.Module,
    query: Tensor,  # [batch, heads, queries, head_dim]
    key: Tensor,  # [batch, kv_heads, keys, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    kind = installed(module)
    if kind is None or s_aux is not None:
        why = (
            "has attention sinks" if s_aux is not None else "was not prepared by dualscope.models.attention_kinds.apply"
        )
        raise InputError(f"no attention kind can be used in this model, because it {why}")
    key, value = for_every_head(key, query.shape[1]), for_every_head(value, query.shape[1])
    output, weights = attend(query, key, value, kind, attention_mask, scaling, softcap, dropout)
    return output.transpose(1, 2).contiguous(), weights


class _Adapters(nn.ModuleDict):
    """The adapters of one projection, by role, and which of its outputs each of them feeds."""

    def __init__(self, adapters: dict[str, Adapter], channels: dict[str, Tensor]) -> None:
        super().__init__(adapters)
        for role, where in channels.items():
            self.register_buffer(f"{role}_channels", where, persistent=False)


def _augment(projection: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    adapters = projection.get_submodule(_ADAPTERS)
    assert isinstance(adapters, _Adapters)
    for role, adapter in adapters.items():
        output = output.index_add(-1, getattr(adapters, f"{role}_channels"), adapter(args[0]).to(output.dtype))
    return output


def _adapt(projection: nn.Module, path: str, family: Family, config: Any, kind: AttentionKind) -> None:
    """Give a projection the adapters its kind asks for, in place of those of an earlier kind.

    They work on the projection's output, before rotary positions and the cache, so nothing else needs to
    know.
    """
    if _ADAPTERS in dict(projection.named_children()):
        delattr(projection, _ADAPTERS)
        for key in [k for k, hook in projection._forward_hooks.items() if hook is _augment]:
            del projection._forward_hooks[key]
    roles = [role for role in kind.adapted if path in (family.fused, getattr(family, role))]
    if not roles:
        return
    assert isinstance(kind, Augmented)
    weight = projection.weight
    assert isinstance(weight, Tensor)
    outputs, inputs = weight.shape if isinstance(projection, nn.Linear) else reversed(weight.shape)
    adapters: dict[str, Adapter] = {}
    channels: dict[str, Tensor] = {}
    for role in roles:
        where = _channels(role, outputs, family, config)
        adapters[role] = Adapter(inputs, len(where), kind.hidden, kind.c).to(weight)
        channels[role] = where.to(weight.device)
    projection.add_module(_ADAPTERS, _Adapters(adapters, channels))
    projection.register_forward_hook(_augment)


def _channels(role: Qkv, outputs: int, family: Family, config: Any) -> Tensor:
    """Which outputs of a projection are keys, or values."""
    every = torch.arange(outputs)
    if family.fused is None:
        return every
    rows = rows_of(family.layout, role, family.heads(config))
    assert rows is not None, "a fused matrix holds keys and values"
    return every.view(rows.blocks, rows.size)[:, rows.first : rows.last].flatten()
