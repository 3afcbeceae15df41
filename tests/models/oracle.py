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
    """Attribute paths: the blocks, the attention in a block, its output and key projections, the final norm."""

    blocks: str
    attention: str
    output: str
    keys: str
    norm: str


_LLAMA = Place("model.layers", "self_attn", "o_proj", "k_proj", "model.norm")
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
}


@dataclass
class Layer:
    """What one layer did with one sequence of T tokens."""

    query: Tensor = field(init=False)  # [heads, T, dim], positions applied, unscaled
    key: Tensor = field(init=False)  # [heads, T, dim]
    scores: Tensor = field(init=False)  # [heads, T, T] before the mask
    seen: Tensor = field(init=False)  # [T, T]
    attn_out: Tensor = field(init=False)  # [T, width]
    residual: Tensor = field(init=False)  # [T, width]
    inputs: Tensor = field(init=False)  # [T, width]

    @property
    def weights(self) -> Tensor:
        return self.scores.masked_fill(~self.seen, float("-inf")).softmax(-1)


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
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
    assert attention_mask is not None, "the oracle must be told what is causal"
    seen = attention_mask[0, 0] >= 0
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    layer = module.__dict__["_oracle"]
    layer.query, layer.key, layer.scores, layer.seen = query[0], key[0], scores[0], seen
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


def _causal(query: Tensor) -> Tensor:
    tokens = query.shape[-2]
    return torch.full((tokens, tokens), float("-inf"), dtype=query.dtype).triu(1)[None, None]


@contextmanager
def _patched_attention(hf: Any, family: str, attentions: list[nn.Module]) -> Iterator[None]:
    """Families that bypass transformers' interface: two have a method to replace, two are watched."""
    with ExitStack() as stack:
        for module in attentions:
            if family in ("gpt_neo", "gptj"):
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
        layer.query, layer.key = heads["q"], heads["k"]
        layer.scores = layer.query @ layer.key.transpose(-1, -2) / math.sqrt(module.head_dim)
        layer.seen = _causal(layer.query)[0, 0] == 0

    handles = [
        module.q_proj.register_forward_hook(note("q")),
        module.k_proj.register_forward_hook(note("k")),
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
        layer.query, layer.key = fused[:, :, 0].transpose(0, 1), fused[:, :, 1].transpose(0, 1)
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
        interface = family not in ("xglm", "gpt_neo", "gptj", "bloom")
        hf.config._attn_implementation = NAME if interface else "eager"
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
        positions = (
            {} if family == "bloom" else {"position_ids": torch.arange(start, start + len(tokens))[None]}
        )
        logits = hf(input_ids=ids, use_cache=False, **positions).logits[0]
    return logits, layers


def _note(module: nn.Module, layer: Layer, name: str, inputs: bool = False) -> Any:
    def hook(_: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        value = args[0] if inputs else output[0] if isinstance(output, tuple) else output
        setattr(layer, name, value[0])

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
                [(layer.key[:, :first] @ layer.query[:, at, :, None]).squeeze(-1).sum(0) for layer in layers]
            ),
            "bos_mass": torch.stack([layer.weights[:, at, : len(lesson.bos)].sum(-1) for layer in layers]),
            "demo_mass": torch.stack(
                [layer.weights[:, at, len(lesson.bos) : first].sum(-1) for layer in layers]
            ),
        }
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
    softcap = getattr(hf.config, "final_logit_softcapping", None)
    return softcap * torch.tanh(logits / softcap) if softcap else logits
