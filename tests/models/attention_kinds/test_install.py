"""Attention kinds against plain formulas, one query and one token at a time."""

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
from dualscope.models.attention_kinds import (
    Adapter,
    AttentionKind,
    Augmented,
    Momentum,
    Negative,
    Regularized,
    apply,
    causal_mask,
    installed,
    make_kind,
    restore,
)
from dualscope.models.attention_kinds.install import attend
from tests.models.lessons import random_lesson
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
        ({"name": "momentum", "etta": 0.5}, "Known: eta"),
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


def draw(*shape: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(3)]


def plain(query: Tensor, key: Tensor, value: Tensor, kind: AttentionKind, causal: bool) -> Tensor:
    """One query at a time, one token at a time."""
    n, d = value.shape

    def seen(i: int) -> list[int]:
        return list(range(i + 1)) if causal else list(range(n))

    values = []
    for i in range(n):
        v = value[i]
        if isinstance(kind, Negative):
            ranked = sorted((float(key[i] @ key[j]), j) for j in seen(i) if j != i)[: kind.k]
            if ranked:
                v = v - kind.beta * sum(value[j] for _, j in ranked) / len(ranked)
        values.append(v)
    outputs = []
    for t in range(n):
        logits = torch.stack([query[t] @ key[i] / d**0.5 for i in seen(t)])
        p = torch.softmax(logits, 0)
        if isinstance(kind, Regularized) and kind.form == "dual":
            p[t] = p[t] * (1 - kind.alpha)
        out = sum((p[i] * values[i] for i in seen(t)), torch.zeros(d).double())
        if isinstance(kind, Regularized) and kind.form == "published":
            out = out - kind.alpha * values[t]
        if isinstance(kind, Momentum):
            out = out + sum((kind.eta ** (t - i) * values[i] for i in range(t)), torch.zeros(d).double())
        outputs.append(out)
    return torch.stack(outputs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        AttentionKind(),
        Momentum(eta=0.7),
        Regularized(alpha=0.4),
        Regularized(alpha=0.4, form="dual"),
        Negative(k=2, beta=0.5),
    ],
    ids=str,
)
def test_attend_is_the_plain_formula(kind: AttentionKind, causal: bool) -> None:
    query, key, value = draw(6, 4)
    mask = causal_mask(6, 6, torch.float64) if causal else None
    output, weights = attend(query, key, value, kind, mask)
    torch.testing.assert_close(output, plain(query, key, value, kind, causal), rtol=1e-12, atol=1e-12)
    assert weights.shape == (6, 6)


def test_momentum_is_its_recursion() -> None:
    """m_{t+1} = eta (m_t + v_t), added to the softmax output."""
    query, key, value = draw(7, 3)
    mask = causal_mask(7, 7, torch.float64)
    extra = attend(query, key, value, Momentum(eta=0.5), mask)[0] - attend(query, key, value, AttentionKind(), mask)[0]
    momentum = torch.zeros(3, dtype=torch.float64)
    for t in range(7):
        torch.testing.assert_close(extra[t], momentum, rtol=1e-12, atol=1e-12)
        momentum = 0.5 * (momentum + value[t])


def test_the_dual_form_is_one_step_on_the_regularized_loss() -> None:
    """W0 - eta grad of the dual loss + (alpha / 2 eta) |W|^2; phi is exact on these points."""
    query, key, value = draw(5, 3)
    alpha, eta, t, q, k = 0.3, 0.7, 4, query / 3**0.25, key / 3**0.25
    points = torch.cat([k, q[t : t + 1]])
    spectrum, vectors = torch.linalg.eigh((points @ points.T).exp())
    phi = vectors * spectrum.clamp(min=0).sqrt()  # [points, features]: phi(a) . phi(b) = exp(a . b)
    total = (k @ q[t]).exp().sum()
    weight = torch.outer(value[t], phi[t]) / total  # the query's own token is all that is not a demonstration
    weight.requires_grad_()
    loss = (
        -sum(value[i] @ weight @ phi[i] for i in range(t)) / (eta * total) + alpha / (2 * eta) * weight.square().sum()
    )
    (gradient,) = torch.autograd.grad(loss, weight)
    expected = (weight - eta * gradient) @ phi[-1]
    output, _ = attend(query, key, value, Regularized(alpha=alpha, form="dual"), causal_mask(5, 5, torch.float64))
    torch.testing.assert_close(output[t], expected.detach(), rtol=1e-9, atol=1e-9)


KINDS: list[dict[str, Any]] = [
    {"name": "softmax"},
    {"name": "momentum", "eta": 0.7},
    {"name": "negative", "k": 2, "beta": 0.3},
    {"name": "regularized", "alpha": 0.4},
    {"name": "regularized", "alpha": 0.4, "form": "dual"},
    {"name": "augmented"},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gpt_neox"])
def test_captured_is_the_model_itself(family: str, options: dict[str, Any]) -> None:
    hf, tokenizer = tiny_model(family, torch.float64)
    torch.manual_seed(0)
    apply(hf, options)
    for name, parameter in hf.named_parameters():
        if "adapters" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model = Model(hf, tokenizer)
    lesson = random_lesson(queries=(3, 5, 5, 12), answers=((16,), (19, 17)))
    trace = model.read(lesson, model.prefix(lesson.context), want=frozenset({"mass"}), batch_size=1)
    batched = model.read(lesson, model.prefix(lesson.context))
    assert torch.allclose(trace.label_logprobs, batched.label_logprobs, rtol=1e-10)
    for i, prompt in enumerate(lesson.queries):
        for label, answer in enumerate(lesson.answers):
            tokens = torch.tensor([[*lesson.context, *prompt, *answer]])
            with torch.no_grad():
                logprobs = hf(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
            rows = torch.arange(tokens.shape[1] - len(answer) - 1, tokens.shape[1] - 1)
            wanted = logprobs[rows, torch.tensor(answer)].mean()
            assert abs(trace.label_logprobs[i, label] - wanted) < 1e-9
    if options["name"] == "softmax":
        plain = Model(*tiny_model(family, torch.float64))
        same = plain.read(lesson, plain.prefix(lesson.context), want=frozenset({"mass"}))
        assert torch.allclose(same.extras["demo_mass"], trace.extras["demo_mass"])


def test_load_restores_what_config_records(tmp_path: Path) -> None:
    hf, tokenizer = tiny_model("gpt2")
    apply(hf, {"name": "augmented"})
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = Model.load(str(tmp_path), device="cpu")
    assert kind_of(model.hf) == kind_of(hf)
    assert all(torch.equal(a, b) for a, b in zip(model.hf.parameters(), hf.parameters(), strict=True))
    drawn = Model.load(str(tmp_path), device="cpu", variant="untrained", init_seed=1)
    again = Model.load(str(tmp_path), device="cpu", variant="untrained", init_seed=1)
    pairs = list(zip(drawn.hf.named_parameters(), again.hf.parameters(), hf.parameters(), strict=True))
    assert all(torch.equal(a, b) for (_, a), b, _ in pairs)
    assert [name for (name, a), _, old in pairs if torch.equal(a, old) and a.any() and "ln" not in name] == []
