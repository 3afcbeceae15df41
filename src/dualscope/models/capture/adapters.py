"""Attention modules that bypass transformers' attention interface, led to it: one function a family.

Each is the module's own forward in eval mode and without a cache, its projections untouched, with the attention
itself handed to ``capture.attention``. Each returns what the module's own forward returns.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Attention = Callable[..., tuple[Tensor, None]]


def xglm(module: Any, attention: Attention, hidden_states: Tensor, *, attention_mask: Tensor | None = None,
         **__: Any) -> tuple[Tensor, None]:  # fmt: skip
    query, key, value = _projected(module, hidden_states, module.num_heads)
    out, _ = attention(module, query, key, value, attention_mask, scaling=module.scaling)
    return module.out_proj(out.flatten(2)), None


def gpt_neo(module: Any, attention: Attention, hidden_states: Tensor, *, attention_mask: Tensor | None = None,
            **__: Any) -> tuple[Tensor, None]:  # fmt: skip
    query, key, value = _projected(module, hidden_states, module.num_heads)
    window = module.config.window_size if module.attention_type == "local" else None
    out, _ = attention(module, query, key, value, attention_mask, scaling=1.0, sliding_window=window)
    return module.out_proj(out.flatten(2)), None


def gptj(module: Any, attention: Attention, hidden_states: Tensor, *, attention_mask: Tensor | None = None,
         position_ids: Tensor | None = None, **__: Any) -> tuple[Tensor, None]:  # fmt: skip
    query, key, value = _projected(module, hidden_states, module.num_attention_heads)
    query, key = _turned(module, query, key, position_ids)
    out, _ = attention(module, query, key, value, attention_mask, scaling=1 / module.scale_attn)
    return module.out_proj(out.flatten(2)), None


def codegen(module: Any, attention: Attention, hidden_states: Tensor, *, attention_mask: Tensor | None = None,
            position_ids: Tensor | None = None, **__: Any) -> tuple[Tensor, None]:  # fmt: skip
    four = module.qkv_proj(hidden_states).unflatten(-1, (4, 3, -1, module.head_dim))
    query, value, key = (t.flatten(2, 3).transpose(1, 2) for t in four.unbind(3))
    query, key = _turned(module, query, key, position_ids)
    out, _ = attention(module, query, key, value, attention_mask, scaling=1 / module.scale_attn)
    return module.out_proj(out.flatten(2)), None


def falcon(module: Any, attention: Attention, hidden_states: Tensor, *, attention_mask: Tensor | None = None,
           position_embeddings: tuple[Tensor, Tensor], **__: Any) -> tuple[Tensor, None]:  # fmt: skip
    from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

    # Group by group: its queries, then the key and the value that they share.
    fused = module.query_key_value(hidden_states).unflatten(-1, (module.num_kv_heads, -1, module.head_dim))
    query = fused[..., :-2, :].flatten(2, 3).transpose(1, 2)
    key, value = (fused[..., at, :].transpose(1, 2) for at in (-2, -1))
    query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
    out, _ = attention(module, query, key, value, attention_mask, scaling=module.inv_norm_factor)
    return module.dense(out.flatten(2)), None


def mpt(module: Any, attention: Attention, hidden_states: Tensor, **__: Any) -> tuple[Tensor, None]:
    fused = module.Wqkv(hidden_states)
    if module.clip_qkv:
        fused = fused.clamp(-module.clip_qkv, module.clip_qkv)
    heads = (t.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for t in fused.chunk(3, -1))
    query, key, value = heads
    slopes = alibi_slopes(module.n_heads, hidden_states.device)
    # Its mask is one of truth values, and says no more than that the future is not seen.
    out, _ = attention(module, query, key, value, None, scaling=module.softmax_scale, slopes=slopes)
    return module.out_proj(out.flatten(2)), None


def bloom(module: Any, attention: Attention, hidden_states: Tensor, residual: Tensor, *,
          attention_mask: Tensor | None = None, **__: Any) -> tuple[Tensor, None]:  # fmt: skip
    qkv = module.query_key_value(hidden_states).unflatten(-1, (module.num_heads, 3, module.head_dim))
    query, key, value = (t.transpose(1, 2) for t in qkv.unbind(-2))
    slopes = alibi_slopes(module.num_heads, hidden_states.device)
    out, _ = attention(module, query, key, value, attention_mask, scaling=module.inv_norm_factor, slopes=slopes)
    return module.dense(out.flatten(2)) + residual, None


ADAPTERS: dict[str, Callable[..., tuple[Tensor, None]]] = {
    "xglm": xglm,
    "gpt_neo": gpt_neo,
    "gptj": gptj,
    "bloom": bloom,
    "codegen": codegen,
    "falcon": falcon,
    "mpt": mpt,
}


def alibi_slopes(heads: int, device: torch.device | str = "cpu") -> Tensor:
    """Press et al.'s slopes: powers of 2^(-8/n) for the n heads of a power of two, odd powers of its root after.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = torch.exp2(-8 / power * torch.arange(1, power + 1, device=device))
    if power < heads:
        odd = torch.arange(1, 2 * (heads - power) + 1, 2, device=device)
        slopes = torch.cat([slopes, torch.exp2(-4 / power * odd)])
    return slopes


def _projected(module: Any, hidden: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values: [batch, heads, tokens, head_dim]."""
    query, key, value = (
        getattr(module, name)(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    return query, key, value


def _turned(module: Any, query: Tensor, key: Tensor, position_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """GPT-J's rotary positions, of the first ``rotary_dim`` of every head."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    assert position_ids is not None
    sincos = module.embed_positions.to(key.device)[position_ids].to(key.dtype)
    sin, cos = sincos.chunk(2, dim=-1)
    turned = module.rotary_dim or key.shape[-1]

    def rotary(states: Tensor) -> Tensor:  # the module's function wants [batch, tokens, heads, dim]
        states = states.transpose(1, 2)
        states = torch.cat([apply_rotary_pos_emb(states[..., :turned], sin, cos), states[..., turned:]], -1)
        return states.transpose(1, 2)

    return rotary(query), rotary(key)
