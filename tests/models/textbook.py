"""Softmax attention as a textbook has it, and what a layer did with one sequence."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Layer:
    """What one layer did with one sequence of T tokens."""

    query: Tensor = field(init=False)  # [heads, T, dim], positions applied, unscaled
    key: Tensor = field(init=False)  # [heads, T, dim]
    value: Tensor = field(init=False)  # [heads, T, dim]
    scores: Tensor = field(init=False)  # [heads, T, T] before the mask
    seen: Tensor = field(init=False)  # [T, T]
    attn_out: Tensor = field(init=False)  # [T, width]
    residual: Tensor = field(init=False)  # [T, width]
    inputs: Tensor = field(init=False)  # [T, width]

    sinks: Tensor | None = None  # [heads]: a logit that takes weight and gives nothing

    @property
    def weights(self) -> Tensor:
        return softmax(self.scores.masked_fill(~self.seen, float("-inf")), self.sinks)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Of [..., heads, T, T], with one more column for a sink where there are any, left out afterwards."""
    if sinks is None:
        return torch.softmax(scores, -1)
    column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention as a textbook has it, and its scores noted in the layer that ``watching`` put there."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    assert attention_mask is not None, "the oracle must be told what is causal"
    seen = attention_mask[0, 0] if attention_mask.dtype == torch.bool else attention_mask[0, 0] >= 0
    weights = softmax(scores.masked_fill(~seen, float("-inf")), s_aux)
    layer = module.__dict__["_oracle"]
    layer.query, layer.key, layer.value, layer.scores, layer.seen = (query[0], key[0], value[0], scores[0], seen)
    layer.sinks = s_aux
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def causal(query: Tensor) -> Tensor:
    """The additive mask of a sequence as long as ``query`` [..., T, dim]: [1, 1, T, T]."""
    tokens = query.shape[-2]
    return torch.full((tokens, tokens), float("-inf"), dtype=query.dtype).triu(1)[None, None]
