"""Attention in parts: each part of the keys gives an output and a log-sum-exp, and two parts merge exactly.

    softmax over both parts = w * (softmax over the first) + (1 - w) * (softmax over the second),
    w = sigmoid(lse_first - lse_second)

So the keys and values of a shared context are stored once, and never copied for each query of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Rules:
    """How one attention call turns products into weights."""

    scaling: float
    softcap: float | None = None
    window: int | None = None  # a key further away than window - 1 positions is not seen
    slopes: Tensor | None = None  # [heads]: ALiBi, as -slope x distance
    plain: bool = False  # no fused kernel: differentiable twice and in forward mode

    @property
    def fusible(self) -> bool:
        return not self.plain and self.softcap is None and self.slopes is None


def scores(query: Tensor, key: Tensor, rules: Rules, distance: Tensor | None) -> Tensor:
    """Attention logits before mask and softmax: [..., heads, rows, keys].

    ``distance`` ([rows, keys], position of the query less that of the key) is only looked at by ALiBi.
    """
    if query.dtype in _HALF:
        query, key = query.float(), key.float()
    logits = (query @ key.mT) * rules.scaling
    if rules.softcap is not None:
        logits = torch.tanh(logits / rules.softcap) * rules.softcap
    if rules.slopes is not None and distance is not None:
        logits = logits - rules.slopes.to(logits)[:, None, None] * distance.to(logits)
    return logits


def plain(
    query: Tensor, key: Tensor, value: Tensor, rules: Rules, distance: Tensor, seen: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output [..., heads, rows, head_dim] and log-sum-exp [..., heads, rows] of one part, step by step.

    ``seen`` ([rows, keys] or broadcastable) says which keys count. A row that sees none has log-sum-exp -inf.
    """
    logits = scores(query, key, rules, distance)
    if seen is not None:
        logits = logits.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(logits, -1)
    weights = torch.exp(logits - lse.masked_fill(lse == float("-inf"), 0.0)[..., None])
    return weights.to(value.dtype) @ value, lse


def fused(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor] | None:
    """The same by the device's fused kernel, or None where there is none for these tensors."""
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = flash(query, key, value, 0.0, causal, attn_mask=None, scale=scaling)
        return out, lse
    if query.device.type == "cuda" and query.shape[-1] == value.shape[-1] and query.shape[-1] % 8 == 0:
        if query.dtype in _HALF:
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            out, lse, *_ = flash(query, key, value, 0.0, causal, False, scale=scaling)
            return out, lse
        if query.dtype == torch.float32:
            efficient = torch.ops.aten._scaled_dot_product_efficient_attention
            out, lse, *_ = efficient(query, key, value, None, True, 0.0, causal, scale=scaling)
            return out, lse[..., : query.shape[-2]]  # the kernel pads rows to a multiple of 32
    return None


def own_part(
    query: Tensor, key: Tensor, value: Tensor, rules: Rules, mask: Tensor | None, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Queries [batch, heads, rows, dim] to the keys of their own sequence, causally; the last row and the last
    key are the same token.

    ``mask`` is transformers' additive one where its pattern is more than causal; None means causal. ``hidden``
    ([batch, keys]) are keys that no row sees.
    """
    key, value = for_every_head(key, query.shape[1]), for_every_head(value, query.shape[1])
    rows, keys = query.shape[-2], key.shape[-2]
    wide = rules.window is not None and keys > rules.window
    if rules.fusible and mask is None and hidden is None and not wide and rows == keys:
        result = fused(query, key, value, rules.scaling, causal=True)
        if result is not None:
            return result
    distance = distances(rows, keys, keys - rows, query.device)
    seen = distance >= 0
    if rules.window is not None:
        seen = seen & (distance < rules.window)
    if mask is not None and mask.shape[-1] == keys:  # it does not know of cached keys; the window does
        seen = seen & (mask > torch.finfo(mask.dtype).min / 2)
    if hidden is not None:
        seen = seen & ~hidden[:, None, None]
    return plain(query, key, value, rules, distance, seen)


def shared_part(query: Tensor, key: Tensor, value: Tensor, rules: Rules, ahead: int) -> tuple[Tensor, Tensor]:
    """Queries [batch, heads, rows, dim] to keys [kv_heads, keys, dim] that all sequences share and all see.

    ``ahead`` is how many positions the first row is ahead of the first key. Keys [contexts, kv_heads, keys, dim] are of
    several contexts: the batch's first sequences share the first of them, as many others the second, and so on.

    The sequences of a context are flattened into the rows (and so are the query heads of a group), so that nothing is
    copied for each of them.
    """
    batch, heads, rows, dim = query.shape
    if key.ndim == 3:
        key, value = key[None], value[None]
    contexts, kv_heads = key.shape[:2]
    each, groups = batch // contexts, heads // kv_heads
    wide = rules.window is not None and ahead + rows > rules.window
    if rules.fusible and not wide:
        if groups == 1:
            flat = query.transpose(1, 2).reshape(contexts, each * rows, heads, dim).transpose(1, 2)
        else:
            # [contexts, kv_heads, each, rows, groups, dim]
            split = query.view(contexts, each, kv_heads, groups, rows, dim).permute(0, 2, 1, 4, 3, 5)
            flat = split.reshape(contexts, kv_heads, -1, dim)
        result = fused(flat, key, value, rules.scaling, causal=False)
        if result is not None:
            out, lse = result
            if groups == 1:
                out = out.transpose(1, 2).reshape(batch, rows, heads, -1).transpose(1, 2)
                return out, lse.view(contexts, heads, each, rows).transpose(1, 2).flatten(0, 1)
            shape = (contexts, kv_heads, each, rows, groups)
            out = out.view(*shape, -1).permute(0, 2, 1, 4, 3, 5).flatten(2, 3).flatten(0, 1)
            return out, lse.view(shape).permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)
    distance = distances(rows, key.shape[-2], ahead, query.device).repeat(each, 1)
    seen = distance < rules.window if wide and rules.window is not None else None
    flat = query.unflatten(0, (contexts, each)).transpose(1, 2).flatten(2, 3)  # contexts, heads, each * rows, dim
    out, lse = plain(flat, for_every_head(key, heads), for_every_head(value, heads), rules, distance, seen)
    found, total = (tensor.unflatten(2, (each, rows)).transpose(1, 2) for tensor in (out, lse))
    return found.flatten(0, 1), total.flatten(0, 1)


def distances(rows: int, keys: int, ahead: int, device: torch.device) -> Tensor:
    """Position of every query less that of every key: [rows, keys]."""
    return (torch.arange(rows, device=device) + ahead)[:, None] - torch.arange(keys, device=device)[None, :]


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Softmax attention over both parts from the output and log-sum-exp of each."""
    (out, lse), (other_out, other_lse) = first, second
    # -inf - finite = -inf: a part that is not seen weighs 0
    weight = torch.sigmoid(lse - other_lse)[..., None]
    lse = torch.logaddexp(lse, other_lse)
    if out.dtype in _HALF and not torch.is_grad_enabled():
        # In float32 inside, without a float32 copy of each output: this is a fifth of what a context costs.
        merged = torch.empty_like(out)
        torch.addcmul(other_out * (1 - weight), out, weight, out=merged)
        return merged, lse
    merged = torch.lerp(other_out.to(weight.dtype), out.to(weight.dtype), weight)
    return merged.to(out.dtype), lse


def with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Attention sinks: a learned logit per head that takes weight and gives nothing."""
    return out * torch.sigmoid(lse - sinks.to(lse)[:, None])[..., None].to(out.dtype)


def for_every_head(tensor: Tensor, heads: int) -> Tensor:
    """Keys or values of grouped heads, one for every query head: [..., heads, keys, dim]."""
    groups = heads // tensor.shape[-3]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, -3)


@cache
def register(name: str, attention: Callable[..., Any], mask: Callable[..., Any] | None = None) -> None:
    """Tell transformers of an attention of ours, once, when a model first needs it: its import takes seconds, and lists
    and reports of learners do without.

    It goes with its mask function (transformers' additive one, unless another is given): an attention without one
    silently loses causality.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask or eager_mask)
