"""The context as a change of weights: exact on every family."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.models.model import Model
from dualscope.models.reading.context_patch import ContextPatch
from tests.learners.plain_hypotheses import label_logprobs
from tests.learners.setting import tiny_lesson, tiny_task, wrapped
from tests.models.oracle import watch
from tests.models.tiny import FAMILIES, WORDS, default_dtype, tiny_tokenizer

PARALLEL = ("gpt_neox", "gptj", "codegen", "falcon")
BUILDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "opt, norms behind": ("opt", {"do_layer_norm_before": False}),
    "gpt_neox, one after another": ("gpt_neox", {"use_parallel_residual": False}),
}


@pytest.mark.parametrize("build", BUILDS)
def test_the_patched_model_is_the_model_in_context(build: str) -> None:
    family, options = BUILDS[build]
    model = wrapped(family, **options)
    bench = Bench(model, tiny_lesson(model, task=tiny_task(n=40), shots=4, queries=5))
    with default_dtype(torch.float64):
        texts = [[*bench.lesson.context, *prompt] for prompt in bench.lesson.queries]
        expected = {
            "label_logprobs": torch.stack([label_logprobs(model.hf, bench.lesson, text) for text in texts]),
            "residual": torch.stack(
                [torch.stack([layer.residual[-1] for layer in watch(model.hf, text)[1]]) for text in texts]
            ),
        }
    learned = bench.learned("context-patch")
    zero = bench.zero_shot
    for name in ("label_logprobs", "residual"):
        left, right = getattr(learned.trace, name), expected[name]
        assert float((left - right).norm() / right.norm()) < 1e-10, name
        assert float((getattr(zero, name) - right).norm() / right.norm()) > 1e-3, "the context does something"
    patch = learned.change
    assert isinstance(patch, ContextPatch)
    assert all(mlp.parallel == (build in PARALLEL) for mlp in patch.mlps)


@pytest.mark.parametrize("leave_out", ["matrix", "vector"])
def test_both_parts_are_needed(leave_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("llama")
    bench = Bench(model, tiny_lesson(model, task=tiny_task(n=40), shots=4, queries=5))
    if leave_out == "vector":
        monkeypatch.setattr(ContextPatch, "_vector", lambda self, session, layer, middle, there: 0 * there("carried"))
    else:
        attach = ContextPatch.attach

        def without(self: ContextPatch, model: Model, session: Any, layer: int, stack: ExitStack) -> None:
            mlp = self.mlps[layer]
            kept = dict(mlp.inputs)
            first = dict(list(kept.items())[:1])
            mlp.inputs.clear()
            mlp.inputs.update(first)  # of a gated MLP one input alone
            attach(self, model, session, layer, stack)
            mlp.inputs.update(kept)

        monkeypatch.setattr(ContextPatch, "attach", without)
    found = bench.learned("context-patch").trace.label_logprobs
    assert float((found - bench.in_context.label_logprobs).abs().max()) > 1e-4


def test_experts_are_refused() -> None:
    config = MixtralConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = Model(MixtralForCausalLM(config).eval(), tiny_tokenizer(), name="experts")
    bench = Bench(model, tiny_lesson(model, shots=2, queries=2))
    with pytest.raises(InputError, match="mixture of experts"):
        bench.learned("context-patch")


def test_only_where_the_label_is_predicted() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, read_at="first-label"))
    with pytest.raises(InputError, match="read_at: prompt-end"):
        bench.learned("context-patch")
