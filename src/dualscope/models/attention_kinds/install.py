"""One attention function for every kind; a kind in a Hugging Face model is switched on, recorded in its configuration
and restored.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.architecture.families import Family, family_of
from dualscope.models.architecture.parts import Qkv, rows_of
from dualscope.models.attention_kinds.kinds import Adapter, AttentionKind, Augmented, make_kind, own_positions
from dualscope.models.capture import attention_kernel
from dualscope.models.capture.attention_kernel import Rules, for_every_head, register, scores

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


def attend(
    query: Tensor,  # [..., queries, dim]
    key: Tensor,  # [..., keys, dim]
    value: Tensor,  # [..., keys, dim]
    kind: AttentionKind,
    mask: Tensor | None = None,  # additive, [..., queries, keys]; None: every token sees every token
    scaling: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Output [..., queries, dim], and the weights that mixed it.

    >>> x = torch.eye(3)
    >>> output, weights = attend(x, x, x, AttentionKind())
    >>> torch.equal(output, weights)
    True
    """
    rules = Rules(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap)
    logits = scores(query, key, rules, distance=None)
    queries, keys = logits.shape[-2:]
    if mask is None:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        others = ~torch.eye(keys, dtype=torch.bool, device=query.device)
    else:
        mask = mask[..., :keys]
        logits = logits + mask
        # A mask may carry a position bias too, so "not hidden" is all that is asked of it.
        visible = mask > torch.finfo(mask.dtype).min / 2
        # With a cache the mask has rows for the queries at hand alone, while values are made for every key:
        # a cached key sees the ones before it that the last query sees.
        earlier = torch.ones(keys, keys, dtype=torch.bool, device=query.device).tril(-1)
        others = earlier & (visible if queries == keys else visible[..., -1:, :])
    return mixed(kind, logits, key, value, visible, others, dropout)


def mixed(
    kind: AttentionKind,
    logits: Tensor,  # [..., queries, keys], hidden keys out of softmax's reach
    key: Tensor,
    value: Tensor,
    visible: Tensor,  # [..., queries, keys]: may this query look at this key?
    others: Tensor,  # [..., keys, keys]: may this token look at that other one?
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The kind's values mixed by its weights: [..., queries, dim], and these weights."""
    weights = torch.softmax(logits, dim=-1).to(value.dtype)
    weights = torch.nn.functional.dropout(weights, dropout, training=dropout > 0)
    weights = kind.mix(weights, visible)
    return weights @ kind.values(key, value, others), weights


def causal_mask(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Additive: each query sees the keys up to where it stands.

    >>> causal_mask(2, 3).exp()
    tensor([[1., 1., 0.],
            [1., 1., 1.]])
    """
    hidden = torch.arange(keys) > own_positions(queries, keys)[:, None]
    return torch.zeros(queries, keys, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


# Attention kinds while a model is captured.
#
# A kind mixes other values with other weights, so its output cannot be merged from two softmax parts: the shared
# context is repeated in front of every query of the batch.


def kind_in(module: nn.Module) -> AttentionKind | None:
    """The kind of an attention module, where it changes more than the projections before it."""
    kind = installed(module)
    plain = kind is None or (type(kind).mix is AttentionKind.mix and type(kind).values is AttentionKind.values)
    return None if plain else kind


def attention(
    kind: AttentionKind,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shared: tuple[Tensor, Tensor] | None,
    rules: attention_kernel.Rules,
) -> tuple[Tensor, Tensor]:
    """Output [batch, heads, rows, head_dim] and the weights that mixed it [batch, heads, rows, keys].

    ``key`` and ``value`` are [batch, kv_heads, keys, head_dim]; ``shared`` the context's, without the batch.
    """
    if shared is not None:
        before = [tensor.expand(len(query), -1, -1, -1) for tensor in shared]
        key, value = torch.cat([before[0], key], -2), torch.cat([before[1], value], -2)
    key, value = (attention_kernel.for_every_head(tensor, query.shape[1]) for tensor in (key, value))
    rows, keys = query.shape[-2], key.shape[-2]
    between = attention_kernel.distances(keys, keys, 0, query.device)  # of every key and every key
    within = between < rules.window if rules.window is not None else torch.ones_like(between, dtype=torch.bool)
    seen = (within & (between >= 0))[-rows:]
    logits = attention_kernel.scores(query, key, rules, between[-rows:])
    logits = logits.masked_fill(~seen, float("-inf"))
    return mixed(kind, logits, key, value, seen, within & (between > 0))
