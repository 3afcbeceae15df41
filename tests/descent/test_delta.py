"""Changes of weights: kept, saved, applied, and taken back bitwise."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.learners import LEARNERS, Bench, Delta
from dualscope.models.model import Model
from tests.learners.setting import ANY_TASK, tiny_bench, tiny_lesson, tiny_task, wrapped

LR = 0.3
BRIEF: dict[str, dict[str, Any]] = {
    "kv-distilled": {"fit": 12, "steps": 10, "batch": 2},
    "kv-aligned": {"fit": 12, "steps": 10, "batch": 2},
    "gd-tuned": {"epochs": 1, "loss": "label", "parameters": "kv"},
    "gd-nearest": {"epochs": 1},  # two demonstrations allow no relabellings to choose by
}
"""What takes long otherwise; a rate is left open to be chosen."""


def state(model: Model) -> dict[str, object]:
    """All that a learner could disturb."""
    hf = model.hf
    return {
        "weights": {name: tensor.detach().clone() for name, tensor in hf.state_dict().items()},
        "requires_grad": [p.requires_grad for p in hf.parameters()],
        "grads": [p.grad for p in hf.parameters()],
        "training": [m.training for m in hf.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in hf.modules()],
        "own": [sorted(m.__dict__) for m in hf.modules()],
        "attention": hf.config._attn_implementation,
        "dtype": torch.get_default_dtype(),
    }


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    assert {k: v for k, v in before.items() if k != "weights"} == {k: v for k, v in after.items() if k != "weights"}
    for name, tensor in before["weights"].items():  # type: ignore[attr-defined]
        assert torch.equal(tensor, after["weights"][name]), name  # type: ignore[index]


@pytest.mark.parametrize("name", ANY_TASK)
@pytest.mark.parametrize("family", ["gpt2", "xglm"])
def test_the_model_is_left_bitwise_as_it_was(family: str, name: str) -> None:
    # Adam, which gd-tuned may choose, has no dual form.
    dual = set() if name == "gd-tuned" else {"dual"}
    bench = tiny_bench(
        family,
        torch.float32,
        want=frozenset({"kendall", "exits", "mass", *dual}),
        other=True,
        shots=2,
        task=tiny_task(n=200),  # some choose a setting on spare examples
    )
    bench.model.hf.train()
    next(bench.model.hf.parameters()).requires_grad_(False)
    before = state(bench.model)
    learned = bench.learned(name, LR, **BRIEF.get(name, {}))
    assert_same(before, state(bench.model))
    assert LEARNERS[name].changes_model == (learned.change is not None)


@pytest.mark.parametrize("name", ["gd", "lcgd", "gd-linearized", "gd-all", "gd/random-update"])
def test_also_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tiny_bench("llama", torch.float32, want=frozenset({"dual"}), shots=2)
    before = state(bench.model)
    monkeypatch.setattr(Model, "read", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        bench.learned(name, LR)
    assert_same(before, state(bench.model))


def test_an_error_while_training(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tiny_bench("gpt2", torch.float32, shots=3)
    before = state(bench.model)
    calls = []

    def fails(hidden: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 5:
            raise OSError("broken")
        return Model.readout(bench.model, hidden)

    monkeypatch.setattr(bench.model, "readout", fails)
    with pytest.raises(OSError, match="broken"):
        bench.learned("lcgd", LR, schedule="sequential")
    monkeypatch.undo()
    assert_same(before, state(bench.model))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["gd", "lcgd", "gd-all"])
def test_saved_loaded_and_applied(family: str, name: str, tmp_path: Path) -> None:
    """A delta that a user applies gives bitwise the weights that the learner saw, and so its trace."""
    bench = tiny_bench(family, torch.float32, shots=3)
    learned = bench.learned(name, LR)
    assert learned.delta is not None
    path = tmp_path / "delta.safetensors"
    learned.delta.save(path)
    before = state(bench.model)
    with Delta.load(path).applied(bench.model):
        assert torch.equal(bench.model.read(bench.lesson).attn_out, learned.trace.attn_out)
    assert_same(before, state(bench.model))


def test_norms_and_scaling() -> None:
    delta = tiny_bench("gpt2", shots=2).learned("gd", LR).delta
    assert delta is not None
    norms = delta.norms()
    assert norms.shape == (3,)
    by_hand = torch.cat([delta[f"layers.1.{r}.{k}"].flatten() for r in ("key", "value") for k in ("weight", "bias")])
    torch.testing.assert_close(norms[1], by_hand.norm())
    torch.testing.assert_close(delta.scaled(2).norms(), 2 * norms)
    torch.testing.assert_close(delta.with_norms(norms.flip(0)).norms(), norms.flip(0))
    assert delta.to("cpu").norms(5).tolist()[3:] == [0, 0]


def test_a_small_update_survives_in_sixteen_bits() -> None:
    """Added to bfloat16 weights this update would change next to nothing; beside them it acts in full."""
    model = wrapped("gpt2", torch.bfloat16)
    bench = Bench(model, tiny_lesson(model, shots=2))
    learned = bench.learned("gd", 1e-3)
    assert learned.delta is not None
    assert all(change.dtype == torch.float32 for change in learned.delta.values())
    weight = model.blocks[0].get_parameter("attn.c_attn.weight")[:, 64:].T.float()
    change = learned.delta["layers.0.value.weight"]
    swallowed = ((weight + change).bfloat16().float() == weight).float().mean()
    assert swallowed > 0.9
    wide = wrapped("gpt2", torch.float32)
    expected = Bench(wide, tiny_lesson(wide, shots=2)).learned("gd", 1e-3).delta
    assert expected is not None
    cosine = torch.nn.functional.cosine_similarity(change.flatten(), expected["layers.0.value.weight"].flatten(), 0)
    assert cosine > 0.99
    # Large enough to show in 16 bits, applying it later is what the learner saw.
    large = bench.learned("gd", 0.5)
    assert large.delta is not None
    with large.delta.applied(model):
        assert torch.equal(model.read(bench.lesson).attn_out, large.trace.attn_out)
    assert not torch.equal(large.trace.attn_out, bench.zero_shot.attn_out)


@pytest.mark.parametrize("name", ["gd", "lcgd", "gd-linearized"])
def test_small_gradients_survive_in_float16(name: str) -> None:
    """Through a faint unembedding and output projection the keys' and values' gradients are too small for float16."""
    deltas = []
    for dtype in (torch.float16, torch.float64):
        model = wrapped("llama", dtype)
        with torch.no_grad():
            for attention in model.attentions:
                attention.get_parameter("o_proj.weight").mul_(2**-12)
            model.hf.lm_head.weight.mul_(2**-6)
        deltas.append(Bench(model, tiny_lesson(model, shots=1, queries=2)).learned(name, LR).delta)
    half, exact = deltas
    assert half is not None
    assert exact is not None
    for key, change in exact.items():
        cosine = torch.nn.functional.cosine_similarity(half[key].double().flatten(), change.flatten(), 0)
        assert cosine > 0.98, key


@pytest.mark.parametrize("name", ["lcgd", "gd-linearized", "gd/random-update"])
def test_learners_in_sixteen_bits(name: str) -> None:
    model = wrapped("llama", torch.bfloat16)
    bench = Bench(model, tiny_lesson(model, shots=2))
    before = state(model)
    learned = bench.learned(name, LR)
    assert learned.trace.attn_out.isfinite().all()
    assert_same(before, state(model))
    with pytest.raises(InputError, match="--dtype float32"):
        bench.learned("gd-all", LR)


def test_bad_input(tmp_path: Path) -> None:
    model = tiny_bench().model
    with (
        pytest.raises(InputError, match=r"'layers\.9.key.weight', which tiny-gpt2 has not"),
        Delta({"layers.9.key.weight": torch.zeros(1)}).applied(model),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"is \(2,\); tiny-gpt2 has \(32,\)"),
        Delta({"layers.0.key.bias": torch.zeros(2)}).applied(model),
    ):
        pass
    with pytest.raises(InputError, match="no such file"):
        Delta.load(tmp_path / "nothing.safetensors")
