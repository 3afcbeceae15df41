"""Attention kinds while a model is captured.

A kind mixes other values with other weights, so its output cannot be merged from two softmax parts: the shared
context is repeated in front of every query of the batch.
"""

import torch
from torch import Tensor, nn

from dualscope.models.attention_kinds.attend import mixed
from dualscope.models.attention_kinds.install import installed
from dualscope.models.attention_kinds.kind import AttentionKind
from dualscope.models.capture import kernel


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
    rules: kernel.Rules,
) -> tuple[Tensor, Tensor]:
    """Output [batch, heads, rows, head_dim] and the weights that mixed it [batch, heads, rows, keys].

    ``key`` and ``value`` are [batch, kv_heads, keys, head_dim]; ``shared`` the context's, without the batch.
    """
    if shared is not None:
        before = [tensor.expand(len(query), -1, -1, -1) for tensor in shared]
        key, value = torch.cat([before[0], key], -2), torch.cat([before[1], value], -2)
    key, value = (kernel.for_every_head(tensor, query.shape[1]) for tensor in (key, value))
    rows, keys = query.shape[-2], key.shape[-2]
    between = kernel.distances(keys, keys, 0, query.device)  # of every key and every key
    within = between < rules.window if rules.window is not None else torch.ones_like(between, dtype=torch.bool)
    seen = (within & (between >= 0))[-rows:]
    logits = kernel.scores(query, key, rules, between[-rows:])
    logits = logits.masked_fill(~seen, float("-inf"))
    return mixed(kind, logits, key, value, seen, within & (between > 0))
