"""Attention kinds in a model: causality, caches, gradients, and that they are saved with it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dualscope.core.errors import InputError
from dualscope.descent.updates import shadowed
from dualscope.models import Model
from dualscope.models.attention_kinds import Adapter, AttentionKind, Augmented, apply, installed, make_kind, restore
from tests.models.tiny import tiny_model

Hf = TypeVar("Hf", bound=torch.nn.Module)
EVERY: list[dict[str, Any]] = [
    {"name": "softmax"},
    {"name": "momentum", "eta": 0.6},
    {"name": "regularized", "alpha": 0.3},
    {"name": "regularized", "alpha": 0.3, "form": "dual"},
    {"name": "negative", "k": 2, "beta": 0.5},
    {"name": "augmented", "parts": "g1", "hidden": 4},
    {"name": "augmented", "parts": "g2", "hidden": 4},
    {"name": "augmented", "parts": "both", "hidden": 4, "c": 0.5},
]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=11, bos_token_id=0, eos_token_id=0)
    return _louder(GPT2LMHeadModel(config))


def llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=11,
    )
    return _louder(LlamaForCausalLM(config))


def _louder(hf: Hf) -> Hf:
    for parameter in hf.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    return hf.double().eval()


def kind_of(hf: torch.nn.Module) -> AttentionKind | None:
    """The one that all of a model's attentions have, where they have one."""
    return next((kind for module in hf.modules() if (kind := installed(module)) is not None), None)


def awake(hf: torch.nn.Module) -> None:
    """Adapters start as nothing; give them something to add."""
    for name, parameter in hf.named_parameters():
        if "adapters" in name:
            parameter.data = 0.5 * torch.randn(parameter.shape, dtype=parameter.dtype)


def test_softmax_in_the_model_is_the_models_own() -> None:
    for hf in (gpt2(), llama()):
        with torch.no_grad():
            before = hf(TOKENS).logits
            apply(hf, {"name": "softmax"})
            # Hugging Face's eager softmax is float32 inside in some architectures
            torch.testing.assert_close(hf(TOKENS).logits, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", EVERY, ids=str)
@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_future_token_changes_nothing_before_it(build: Callable[[], Any], options: dict[str, Any]) -> None:
    hf = build()
    apply(hf, options)
    awake(hf)
    changed = TOKENS.clone()
    changed[:, 5] = 0
    with torch.no_grad():
        first, second = hf(TOKENS).logits, hf(changed).logits
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


@pytest.mark.parametrize("options", EVERY, ids=str)
@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_cache_and_left_padding_change_nothing(build: Callable[[], Any], options: dict[str, Any]) -> None:
    hf = build()
    apply(hf, options)
    awake(hf)
    with torch.no_grad():
        whole = hf(TOKENS).logits
        first = hf(TOKENS[:, :5], use_cache=True)
        second = hf(TOKENS[:, 5:], past_key_values=first.past_key_values).logits
        padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), TOKENS], 1)
        mask = (torch.arange(11) >= 3).long().expand(2, -1)
        positions = (torch.arange(11) - 3).clamp(min=0).expand(2, -1)
        third = hf(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
    torch.testing.assert_close(torch.cat([first.logits, second], 1), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(third, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", EVERY[1:], ids=str)
def test_a_kind_changes_the_model_and_trains(options: dict[str, Any]) -> None:
    hf = gpt2()
    before = hf(TOKENS).logits.detach()
    apply(hf, options)
    awake(hf)
    loss = hf(TOKENS, labels=TOKENS).loss
    loss.backward()
    assert not torch.allclose(hf(TOKENS).logits, before)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in hf.parameters())


def test_augmented_projections_are_the_formula() -> None:
    for hf in (gpt2(), llama()):
        attention: Any = hf.get_submodule(
            "transformer.h.0.attn" if hf.config.model_type == "gpt2" else "model.layers.0.self_attn"
        )
        x = torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def project(attention: Any = attention, x: Any = x) -> tuple[Tensor, Tensor]:
            if hasattr(attention, "c_attn"):
                _, key, value = attention.c_attn(x).split(16, -1)
                return key, value
            return attention.k_proj(x), attention.v_proj(x)

        key, value = project()
        apply(hf, {"name": "augmented", "parts": "both", "c": 0.5, "hidden": 4})
        awake(hf)
        homes = {"key": getattr(attention, "c_attn", None) or attention.k_proj}
        homes["value"] = getattr(attention, "c_attn", None) or attention.v_proj
        for role, plain_output, output in zip(("key", "value"), (key, value), project(), strict=True):
            adapter = homes[role].dualscope_adapters[role]
            expected = plain_output + 0.5 * torch.relu(x @ adapter.first.T) @ adapter.second.T
            torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


def test_stacked_adapters_are_separate_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    many = Adapter(3, 2, 5, 0.5, copies=4, generator=generator)
    many.second.data.normal_(generator=generator)
    x = torch.randn(4, 6, 7, 3, generator=generator)
    for i in range(4):
        expected = 0.5 * torch.relu(x[i] @ many.first[i].T) @ many.second[i].T
        torch.testing.assert_close(many(x)[i], expected)


def test_a_saved_model_comes_back_with_its_kind(tmp_path: Path) -> None:
    for number, options in enumerate(EVERY):
        hf = gpt2()
        apply(hf, options)
        awake(hf)
        hf.save_pretrained(tmp_path / str(number))
        loaded = GPT2LMHeadModel.from_pretrained(tmp_path / str(number), dtype=torch.float64)
        assert restore(loaded, sorted((tmp_path / str(number)).glob("*.safetensors"))) == kind_of(hf)
        assert loaded.config.dualscope_attention == make_kind(options).described()
        with torch.no_grad():
            torch.testing.assert_close(loaded.eval()(TOKENS).logits, hf(TOKENS).logits)
            torch.testing.assert_close(copy.deepcopy(hf)(TOKENS).logits, hf(TOKENS).logits)


def test_missing_adapters_are_refused(tmp_path: Path) -> None:
    hf = gpt2()
    hf.save_pretrained(tmp_path)
    hf.config.dualscope_attention = Augmented().described()
    with pytest.raises(InputError, match="weights"):
        restore(hf, [tmp_path / "model.safetensors"])


def test_a_second_kind_replaces_the_first() -> None:
    hf, fresh = gpt2(), gpt2()
    apply(hf, {"name": "augmented"})
    awake(hf)
    for each in (hf, fresh):
        apply(each, {"name": "momentum", "eta": 0.2})
    assert torch.equal(hf(TOKENS).logits, fresh(TOKENS).logits)
    assert not any("adapters" in name for name, _ in hf.named_parameters())
    assert restore(gpt2()) is None
    assert kind_of(gpt2()) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "momentun"}, "did you mean momentum"),
        ({"name": "momentum", "eta": 1.5}, "'eta'"),
        ({"name": "momentum", "etta": 0.5}, "Its options: eta"),
        ({"eta": 0.5}, "mapping with a name"),
        ("momentum", "mapping with a name"),
    ],
)
def test_bad_options_are_explained(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        apply(gpt2(), options)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_change_beside_the_weights_counts_the_nonlinear_part_once(build: Callable[[], Any]) -> None:
    """As changes of 16-bit weights act, and those that are linearised: what hangs on a layer runs once, not twice."""
    hf = build()
    apply(hf, {"name": "augmented", "parts": "both", "c": 0.5, "hidden": 4})
    awake(hf)
    model = Model(hf, tiny_model("gpt2")[1])
    torch.manual_seed(1)
    changes = {
        f"{path}.weight": 0.1 * torch.randn_like(module.get_parameter("weight"))
        for path, module in hf.named_modules()
        if "dualscope_adapters" in dict(module.named_children())
    }
    assert changes
    with torch.no_grad():
        with shadowed(model, changes):
            beside = hf(TOKENS).logits
        for name, change in changes.items():
            hf.get_parameter(name).add_(change)
        torch.testing.assert_close(beside, hf(TOKENS).logits, rtol=1e-10, atol=1e-10)
