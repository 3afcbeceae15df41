"""The slow oracle: what a trace must be, computed the plain way.

One query at a time, the full context in front of it, every class's label in a pass of its own, and a plain
attention with its softmax in the input's dtype (Hugging Face's eager softmax is float32 inside). It shares no
code with ``dualscope.models``: it has its own table of where things are, and takes masks and windows from
transformers' own masks.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.models.bypassing import BYPASS, textbook_attention
from tests.models.textbook import Layer, plain_attention
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
    "gpt_neox": Place("gpt_neox.layers", "attention", "dense", "query_key_value", "gpt_neox.final_layer_norm"),
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

AttentionInterface.register(NAME, plain_attention)
AttentionMaskInterface.register(NAME, eager_mask)


@torch.no_grad()
def watch(hf: Any, tokens: Sequence[int], start: int = 0) -> tuple[Tensor, list[Layer]]:
    """Logits [T, vocabulary] of one sequence whose first token stands at position ``start``, and its layers."""
    return watch_with_gradients(hf, tokens, start)


def watch_with_gradients(hf: Any, tokens: Sequence[int], start: int = 0) -> tuple[Tensor, list[Layer]]:
    """The same, for a loss of what is found."""
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
            stack.enter_context(textbook_attention(hf, family, attentions))
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
            [layer.scores[:, at, first:].masked_fill(~layer.seen[at, first:], float("nan")) for layer in layers]
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
            "demo_mass": torch.stack([layer.weights[:, at, len(lesson.bos) : first].sum(-1) for layer in layers]),
        }
        weights = torch.stack([layer.weights[:, at] for layer in layers])
        row["attention_before"] = weights[..., :first]
        row["attention_own"] = nn.functional.pad(weights[..., first:], (most - len(own), 0), value=float("nan"))
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
        exits.append(torch.stack([readout(hf, layer.residual).log_softmax(-1)[where, what].mean() for layer in layers]))
    return torch.stack(final), torch.stack(exits, -1)


def readout(hf: Any, hidden: Tensor) -> Tensor:
    place = PLACES.get(hf.config.model_type, _LLAMA)
    logits = hf.get_output_embeddings()(hf.get_submodule(place.norm)(hidden))
    if hf.config.model_type in ("cohere", "cohere2"):
        logits = logits * hf.config.logit_scale
    if hf.config.model_type in ("granite", "granitemoe", "granitemoeshared", "minicpm3"):
        logits = logits / hf.config.logits_scaling
    softcap = getattr(hf.config, "final_logit_softcapping", None)
    capped: Tensor = softcap * torch.tanh(logits / softcap) if softcap else logits
    return capped
