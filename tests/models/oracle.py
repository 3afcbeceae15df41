"""The slow oracle: what a trace must be, computed the plain way.

One query at a time, the full context in front of it, every class's label in a pass of its own, and a plain
attention with its softmax in the input's dtype (Hugging Face's eager softmax is float32 inside). It shares no
code with ``dualscope.models``: it has its own table of where things are, and takes masks and windows from
transformers' own masks.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.models.tiny import default_dtype

NAME = "test_oracle"


@dataclass(frozen=True)
class Place:
    """Attribute paths: the blocks, the attention in a block, its output, key and value projections, the final norm."""

    blocks: str = "model.layers"
    attention: str = "self_attn"
    output: str = "o_proj"
    keys: str = "k_proj"
    norm: str = "model.norm"

    @property
    def values(self) -> str:
        return "v_proj" if self.keys == "k_proj" else self.keys


_LLAMA = Place()
_LATENT = Place(keys="kv_b_proj")
PLACES = {
    "gpt2": Place("transformer.h", "attn", "c_proj", "c_attn", "transformer.ln_f"),
    "opt": Place("model.decoder.layers", "self_attn", "out_proj", "k_proj", "model.decoder.final_layer_norm"),
    "gpt_neox": Place(
        "gpt_neox.layers", "attention", "dense", "query_key_value", "gpt_neox.final_layer_norm"
    ),
    "phi3": Place("model.layers", "self_attn", "o_proj", "qkv_proj", "model.norm"),
    "xglm": Place("model.layers", "self_attn", "out_proj", "k_proj", "model.layer_norm"),
    "gpt_neo": Place("transformer.h", "attn.attention", "out_proj", "k_proj", "transformer.ln_f"),
    "gptj": Place("transformer.h", "attn", "out_proj", "k_proj", "transformer.ln_f"),
    "bloom": Place("transformer.h", "self_attention", "dense", "query_key_value", "transformer.ln_f"),
    "codegen": Place("transformer.h", "attn", "out_proj", "qkv_proj", "transformer.ln_f"),
    "falcon": Place("transformer.h", "self_attention", "dense", "query_key_value", "transformer.ln_f"),
    "mpt": Place("transformer.blocks", "attn", "out_proj", "Wqkv", "transformer.norm_f"),
    "persimmon": Place(output="dense", keys="query_key_value", norm="model.final_layernorm"),
    "gpt_bigcode": Place("transformer.h", "attn", "c_proj", "c_attn", "transformer.ln_f"),
    "phi": Place(output="dense", norm="model.final_layernorm"),
    "biogpt": Place(blocks="biogpt.layers", output="out_proj", norm="biogpt.layer_norm"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "minicpm3", "youtu", "glm4_moe_lite"), _LATENT),
}
BYPASS = ("xglm", "gpt_neo", "gptj", "bloom", "codegen", "falcon", "mpt")  # transformers' attention interface


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
    scores = torch.matmul(query, key.transpose(-1, -2)) * (
        query.shape[-1] ** -0.5 if scaling is None else scaling
    )
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    assert attention_mask is not None, "the oracle must be told what is causal"
    seen = attention_mask[0, 0] if attention_mask.dtype == torch.bool else attention_mask[0, 0] >= 0
    weights = softmax(scores.masked_fill(~seen, float("-inf")), s_aux)
    layer = module.__dict__["_oracle"]
    layer.query, layer.key, layer.value, layer.scores, layer.seen = (
        query[0],
        key[0],
        value[0],
        scores[0],
        seen,
    )
    layer.sinks = s_aux
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, plain_attention)
AttentionMaskInterface.register(NAME, eager_mask)


def _gpt_neo_attn(self: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
    tokens = query.shape[-2]
    local = torch.zeros(tokens, tokens, dtype=query.dtype).masked_fill(
        ~self.bias[0, 0, :tokens, :tokens], float("-inf")
    )
    out, _ = plain_attention(self, query, key, value, local[None, None], scaling=1.0)
    return out.transpose(1, 2), None


def _gptj_attn(self: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
    out, _ = plain_attention(self, query, key, value, _causal(query), scaling=1 / self.scale_attn)
    return out.transpose(1, 2), None


def _mpt_attention(self: Any, hidden: Tensor, position_bias: Tensor, **_: Any) -> Any:
    """Its own forward has a softmax in float32; the slopes are those that the model hands on."""
    query, key, value = (
        part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        for part in self.Wqkv(hidden).split(self.hidden_size, -1)
    )
    at = torch.arange(hidden.shape[1])
    distance = (at[:, None] - at[None, :]).to(hidden.dtype)
    bias = position_bias[:, :, -2:-1].to(hidden.dtype) * distance  # what it adds to a key one position back
    out, _ = plain_attention(self, query, key, value, _causal(query), scaling=self.softmax_scale, bias=bias)
    return self.out_proj(out.flatten(2)), None


@contextmanager
def _watch_falcon(attentions: list[nn.Module]) -> Iterator[None]:
    """It calls torch's fused attention after rotary positions; the textbook's stands in for it."""
    now: list[nn.Module] = []
    before = nn.functional.scaled_dot_product_attention

    def instead(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
        return plain_attention(now[-1], query, key, value, _causal(query))[0].transpose(1, 2)

    handles = [module.register_forward_pre_hook(lambda m, _: now.append(m)) for module in attentions]
    nn.functional.scaled_dot_product_attention = instead  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = before
        for handle in handles:
            handle.remove()


def _causal(query: Tensor) -> Tensor:
    tokens = query.shape[-2]
    return torch.full((tokens, tokens), float("-inf"), dtype=query.dtype).triu(1)[None, None]


@contextmanager
def _patched_attention(hf: Any, family: str, attentions: list[nn.Module]) -> Iterator[None]:
    """Families that bypass transformers' interface: some have a method to replace, others are watched."""
    with ExitStack() as stack:
        if family == "falcon":
            stack.enter_context(_watch_falcon(attentions))
        for module in attentions:
            if family == "mpt":
                module.forward = MethodType(_mpt_attention, module)  # type: ignore[assignment]
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

            functional = modeling_bloom.F
            changed = SimpleNamespace(**{name: getattr(functional, name) for name in dir(functional)})
            changed.softmax = lambda tensor, dim, dtype=None: torch.softmax(tensor, dim)
            modeling_bloom.F = changed
            stack.callback(setattr, modeling_bloom, "F", functional)
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
        layer.seen = _causal(layer.query)[0, 0] == 0

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


@torch.no_grad()
def watch(hf: Any, tokens: Sequence[int], start: int = 0) -> tuple[Tensor, list[Layer]]:
    """Logits [T, vocabulary] of one sequence whose first token stands at position ``start``, and its layers."""
    family = hf.config.model_type
    place = PLACES.get(family, _LLAMA)
    blocks = list(hf.get_submodule(place.blocks))
    attentions = [block.get_submodule(place.attention) for block in blocks]
    layers = [Layer() for _ in blocks]
    before = hf.config._attn_implementation
    with ExitStack() as stack:
        stack.enter_context(default_dtype(hf.dtype))
        interface = family not in BYPASS
        hf.config._attn_implementation = NAME if interface else "sdpa" if family == "falcon" else "eager"
        stack.callback(setattr, hf.config, "_attn_implementation", before)
        for block, module, layer in zip(blocks, attentions, layers, strict=True):
            module.__dict__["_oracle"] = layer
            stack.callback(module.__dict__.pop, "_oracle")
            stack.callback(_note(module.get_submodule(place.output), layer, "attn_out").remove)
            stack.callback(_note(block, layer, "residual").remove)
            stack.callback(_note(module.get_submodule(place.keys), layer, "inputs", inputs=True).remove)
        if not interface:
            stack.enter_context(_patched_attention(hf, family, attentions))
        ids = torch.tensor([list(tokens)])
        where = torch.arange(start, start + len(tokens))[None]
        positions = {} if family in ("bloom", "mpt") else {"position_ids": where}
        logits = hf(input_ids=ids, use_cache=False, **positions).logits[0]
    return logits, layers


def _note(module: nn.Module, layer: Layer, name: str, inputs: bool = False) -> Any:
    def hook(_: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        value = args[0] if inputs else output[0] if isinstance(output, tuple) else output
        setattr(layer, name, value[0].flatten(0, -2))  # DeepSeek's have one head in between

    return module.register_forward_hook(hook)


def oracle(hf: Any, lesson: Any, context: Sequence[int], position_offset: int = 0) -> dict[str, Tensor]:
    """The trace of every query after ``context`` (BOS alone is zero-shot), by the names of Trace's fields."""
    rows: dict[str, list[Tensor]] = {}
    most = max(len(lesson.own_tokens(i)) for i in range(len(lesson.queries)))
    first = len(context)
    for i, prompt in enumerate(lesson.queries):
        own = lesson.own_tokens(i)
        _, layers = watch(hf, [*context, *own], position_offset)
        at = first + len(own) - 1
        scores = torch.stack(
            [
                layer.scores[:, at, first:].masked_fill(~layer.seen[at, first:], float("nan"))
                for layer in layers
            ]
        )
        row = {
            "attn_out": torch.stack([layer.attn_out[at] for layer in layers]),
            "residual": torch.stack([layer.residual[at] for layer in layers]),
            "attn_scores": nn.functional.pad(scores, (most - len(own), 0), value=float("nan")),
            "layer_inputs": torch.stack([layer.inputs[at] for layer in layers]),
            "query_vectors": torch.stack([layer.query[:, at].flatten() for layer in layers]),
            "context_scores": torch.stack(
                [
                    layer.scores[:, at, :first].masked_fill(~layer.seen[at, :first], float("nan")).sum(0)
                    for layer in layers
                ]
            ),
            "context_products": torch.stack(
                [(layer.key[:, :first] @ layer.query[:, at, :, None]).squeeze(-1).sum(0) for layer in layers]
            ),
            "bos_mass": torch.stack([layer.weights[:, at, : len(lesson.bos)].sum(-1) for layer in layers]),
            "demo_mass": torch.stack(
                [layer.weights[:, at, len(lesson.bos) : first].sum(-1) for layer in layers]
            ),
        }
        weights = torch.stack([layer.weights[:, at] for layer in layers])
        row["attention_before"] = weights[..., :first]
        row["attention_own"] = nn.functional.pad(
            weights[..., first:], (most - len(own), 0), value=float("nan")
        )
        row["label_logprobs"], row["label_logprobs_at_layer"] = _labels(
            hf, lesson, [*context, *prompt], position_offset
        )
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in rows.items()}


def _labels(hf: Any, lesson: Any, tokens: list[int], start: int) -> tuple[Tensor, Tensor]:
    """Mean log-probability of each label's tokens, by the model [classes] and read off each layer [layers, classes]."""
    final, exits = [], []
    for answer in lesson.answers:
        logits, layers = watch(hf, [*tokens, *answer], start)
        where = torch.arange(len(tokens) - 1, len(tokens) + len(answer) - 1)
        what = torch.tensor(answer)
        final.append(logits.log_softmax(-1)[where, what].mean())
        exits.append(
            torch.stack([readout(hf, layer.residual).log_softmax(-1)[where, what].mean() for layer in layers])
        )
    return torch.stack(final), torch.stack(exits, -1)


def readout(hf: Any, hidden: Tensor) -> Tensor:
    place = PLACES.get(hf.config.model_type, _LLAMA)
    logits = hf.get_output_embeddings()(hf.get_submodule(place.norm)(hidden))
    if hf.config.model_type in ("cohere", "cohere2"):
        logits = logits * hf.config.logit_scale
    if hf.config.model_type in ("granite", "granitemoe", "granitemoeshared", "minicpm3"):
        logits = logits / hf.config.logits_scaling
    softcap = getattr(hf.config, "final_logit_softcapping", None)
    return softcap * torch.tanh(logits / softcap) if softcap else logits
