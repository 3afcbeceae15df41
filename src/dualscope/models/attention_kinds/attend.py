"""One attention function for every variant."""

import torch
from torch import Tensor

from dualscope.models.attention_kinds.kind import Variant, own_positions


def attend(
    query: Tensor,  # [..., queries, dim]
    key: Tensor,  # [..., keys, dim]
    value: Tensor,  # [..., keys, dim]
    variant: Variant,
    mask: Tensor | None = None,  # additive, [..., queries, keys]; None: everybody sees everybody
    scaling: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Output [..., queries, dim], and the weights that mixed it.

    >>> x = torch.eye(3)
    >>> output, weights = attend(x, x, x, Variant())
    >>> torch.equal(output, weights)
    True
    """
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = scores.shape[-2:]
    if mask is None:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        others = ~torch.eye(keys, dtype=torch.bool, device=query.device)
    else:
        mask = mask[..., :keys]
        scores = scores + mask
        # A mask may carry a position bias too, so "not hidden" is all that is asked of it.
        visible = mask > torch.finfo(mask.dtype).min / 2
        # With a cache the mask has rows for the queries at hand alone, while values are made for every key:
        # a cached key sees the ones before it that the last query sees.
        earlier = torch.ones(keys, keys, dtype=torch.bool, device=query.device).tril(-1)
        others = earlier & (visible if queries == keys else visible[..., -1:, :])
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    weights = torch.nn.functional.dropout(weights, dropout, training=dropout > 0)
    weights = variant.mix(weights, visible)
    return weights @ variant.values(key, value, others), weights


def causal_mask(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Additive: each query sees the keys up to where it stands.

    >>> causal_mask(2, 3).exp()
    tensor([[1., 1., 0.],
            [1., 1., 1.]])
    """
    hidden = torch.arange(keys) > own_positions(queries, keys)[:, None]
    return torch.zeros(queries, keys, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
