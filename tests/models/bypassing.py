"""Families whose attention bypasses transformers' interface, computing by the textbook's attention all the same."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.models.textbook import causal, plain_attention

BYPASS = ("xglm", "gpt_neo", "gptj", "bloom", "codegen", "falcon", "mpt")


def _gpt_neo_attn(self: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
    tokens = query.shape[-2]
    local = torch.zeros(tokens, tokens, dtype=query.dtype).masked_fill(
        ~self.bias[0, 0, :tokens, :tokens], float("-inf")
    )
    out, _ = plain_attention(self, query, key, value, local[None, None], scaling=1.0)
    return out.transpose(1, 2), None


def _gptj_attn(self: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
    out, _ = plain_attention(self, query, key, value, causal(query), scaling=1 / self.scale_attn)
    return out.transpose(1, 2), None


def _mpt_attention(self: Any, hidden: Tensor, position_bias: Tensor, **given: Any) -> Any:
    """Its own forward has a softmax in float32; the slopes are those that the model hands on."""
    query, key, value = (
        part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in self.Wqkv(hidden).split(self.hidden_size, -1)
    )
    at = torch.arange(hidden.shape[1])
    distance = (at[:, None] - at[None, :]).to(hidden.dtype)
    bias = position_bias[:, :, -2:-1].to(hidden.dtype) * distance  # what it adds to a key one position back
    out, _ = plain_attention(self, query, key, value, causal(query), scaling=self.softmax_scale, bias=bias)
    return self.out_proj(out.flatten(2)), None


@contextmanager
def _watch_falcon(attentions: list[nn.Module]) -> Iterator[None]:
    """It calls torch's fused attention after rotary positions; the textbook's stands in for it."""
    now: list[nn.Module] = []
    before = nn.functional.scaled_dot_product_attention

    def instead(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
        return plain_attention(now[-1], query, key, value, causal(query))[0].transpose(1, 2)

    handles = [module.register_forward_pre_hook(lambda m, _: now.append(m)) for module in attentions]
    nn.functional.scaled_dot_product_attention = instead  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = before
        for handle in handles:
            handle.remove()


@contextmanager
def textbook_attention(hf: Any, family: str, attentions: list[nn.Module]) -> Iterator[None]:
    """Inside, families that bypass transformers' interface: some have a method to replace, others are watched."""
    with ExitStack() as stack:
        if family == "falcon":
            stack.enter_context(_watch_falcon(attentions))
        for module in attentions:
            if family == "mpt":
                module.forward = MethodType(_mpt_attention, module)
                stack.callback(module.__dict__.pop, "forward")
            if family in ("gpt_neo", "gptj", "codegen"):
                replacement = _gpt_neo_attn if family == "gpt_neo" else _gptj_attn
                module._attn = MethodType(replacement, module)  # type: ignore[assignment]
                stack.callback(module.__dict__.pop, "_attn")
            elif family == "xglm":
                stack.enter_context(_watch_xglm(module))
            elif family == "bloom":
                stack.enter_context(_watch_bloom(module))
        if family == "bloom":
            from transformers.models.bloom import modeling_bloom

            functional = nn.functional
            changed = SimpleNamespace(**{name: getattr(functional, name) for name in dir(functional)})
            changed.softmax = lambda tensor, dim, dtype=None: torch.softmax(tensor, dim)
            stack.enter_context(mock.patch.object(modeling_bloom, "F", changed))
        yield


@contextmanager
def _watch_xglm(module: Any) -> Iterator[None]:
    heads = {}

    def note(which: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            heads[which] = output[0].unflatten(-1, (module.num_heads, -1)).transpose(0, 1)

        return hook

    def finish(_: nn.Module, __: Any, ___: Any) -> None:
        layer = module.__dict__["_oracle"]
        layer.query, layer.key, layer.value = heads["q"], heads["k"], heads["v"]
        layer.scores = layer.query @ layer.key.transpose(-1, -2) / math.sqrt(module.head_dim)
        layer.seen = causal(layer.query)[0, 0] == 0

    handles = [
        module.q_proj.register_forward_hook(note("q")),
        module.k_proj.register_forward_hook(note("k")),
        module.v_proj.register_forward_hook(note("v")),
        module.out_proj.register_forward_hook(finish),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _watch_bloom(module: Any) -> Iterator[None]:
    def hook(_: nn.Module, __: Any, output: Tensor) -> None:
        layer = module.__dict__["_oracle"]
        fused = output[0].view(output.shape[1], module.num_heads, 3, module.head_dim)
        layer.query, layer.key, layer.value = (fused[:, :, i].transpose(0, 1) for i in range(3))
        slopes = torch.tensor([2 ** (-8 * (h + 1) / module.num_heads) for h in range(module.num_heads)])
        at = torch.arange(output.shape[1])
        distance = (at[:, None] - at[None, :]).to(output.dtype)
        products = layer.query @ layer.key.transpose(-1, -2) / math.sqrt(module.head_dim)
        layer.scores = products - slopes.to(output.dtype)[:, None, None] * distance
        layer.seen = distance >= 0

    handle = module.query_key_value.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
