"""One attention function for every kind."""

import torch
from torch import Tensor

from dualscope.models.attention_kinds.kind import AttentionKind, own_positions
from dualscope.models.capture.kernel import Rules, scores


def attend(
    query: Tensor,  # [..., queries, dim]
    key: Tensor,  # [..., keys, dim]
    value: Tensor,  # [..., keys, dim]
    kind: AttentionKind,
    mask: Tensor | None = None,  # additive, [..., queries, keys]; None: everybody sees everybody
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
