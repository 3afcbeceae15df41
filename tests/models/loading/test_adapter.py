"""LoRA adapters, made here, merged into the model they were made for or active beside it, and refused by any other."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualscope.core.errors import InputError
from dualscope.core.spec import ModelSpec
from dualscope.core.words import AdapterMode
from dualscope.descent.delta import Delta
from dualscope.descent.updates import shadowed
from dualscope.learners import Bench, identify
from dualscope.metrics.measured import measure_cell
from dualscope.models import Model
from dualscope.models.loading.adapter import low_rank_of
from dualscope.models.loading.digest import model_digest
from tests.learners.setting import tiny_lesson
from tests.models.tiny import tiny_model

peft = pytest.importorskip("peft")
TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}
TOKENS = torch.tensor([[1, 5, 9, 7, 3]])


def make(tmp_path: Path, family: str, **settings: Any) -> tuple[Path, Path, torch.Tensor]:
    """A model's folder, an adapter's, and the logits of the two together, as peft computes them."""
    hf, tokenizer = tiny_model(family)
    hf.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    usual = {"target_modules": TARGETS.get(family), "fan_in_fan_out": family == "gpt2", "lora_alpha": 3}
    config = peft.LoraConfig(r=2, init_lora_weights=False, **usual | settings)
    adapted = peft.get_peft_model(hf, config).eval()
    adapted.save_pretrained(str(tmp_path / "adapter"))
    with torch.no_grad():
        return tmp_path / "model", tmp_path / "adapter", adapted(TOKENS).logits


def load(model: Path, adapter: Path, mode: AdapterMode = "merged", **options: Any) -> Model:
    return Model.load(str(model), device="cpu", adapter=str(adapter), adapter_mode=mode, **options)


@pytest.mark.parametrize("family", TARGETS)
def test_a_merged_adapter_computes_what_the_active_one_does(tmp_path: Path, family: str) -> None:
    model, adapter, wanted = make(tmp_path, family)
    plain, found = Model.load(str(model), device="cpu"), load(model, adapter)
    with torch.no_grad():
        torch.testing.assert_close(found.hf(TOKENS).logits, wanted, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(plain.hf(TOKENS).logits, wanted, atol=1e-3)
    assert [name for name, _ in found.hf.named_parameters()] == [n for n, _ in plain.hf.named_parameters()]
    assert found.name == f"{model}+adapter"
    assert found.digest != plain.digest
    assert model_digest(str(model)) != model_digest(str(model), adapter=str(adapter))


def test_an_adapter_is_part_of_a_cells_name_and_changes_no_other_id() -> None:
    plain, adapted = ModelSpec("embedded", "w"), ModelSpec("embedded", "w2", adapter="some/where/mine")
    assert "adapter" not in plain.facts
    assert adapted.facts == plain.facts | {"source": "embedded+mine", "weights": "w2"}


def _change(adapter: Path, **fields: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "only LoRA adapters"),
        ({"megatron_config": {}, "megatron_core": "evil"}, "Megatron"),
        ({"init_lora_weights": "pissa"}, "begun with 'pissa'"),
        ({"r": 3}, "does not fit"),
        ({"target_modules": ["nothing"]}, "does not fit"),
        ({"target_modules": ["c_attn", "c_fc"]}, "tensors are only in one of them"),
    ],
)
def test_what_cannot_be_merged_is_said(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    model, adapter, _ = make(tmp_path, "gpt2")
    _change(adapter, **fields)
    with pytest.raises(InputError, match=said):
        load(model, adapter)


def test_an_adapter_of_another_model_does_not_fit(tmp_path: Path) -> None:
    model, _, _ = make(tmp_path / "a", "gpt2")
    _, other, _ = make(tmp_path / "b", "llama")
    with pytest.raises(InputError, match="does not fit model"):
        load(model, other)


def test_tensors_without_a_place_are_no_silence(tmp_path: Path) -> None:
    model, adapter, _ = make(tmp_path, "gpt2")
    file = adapter / "adapter_model.safetensors"
    save_file(load_file(file) | {"base_model.model.more": torch.zeros(2)}, file)
    with pytest.raises(InputError, match="only in one of them"):
        load(model, adapter)


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, adapter, _ = make(tmp_path, "gpt2")
    with pytest.raises(InputError, match="no such folder"):
        load(model, tmp_path / "nowhere")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "peft", None)
        with pytest.raises(InputError, match=r"peft is not installed.*dualscope\[adapters\]"):
            load(model, adapter)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(InputError, match="pickled weights only"):
        load(model, adapter)
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(InputError, match=r"there is no adapter_model\.safetensors"):
        load(model, adapter)


# Beside the weights

EVERYWHERE = {
    "gpt2": ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
}
LEARNERS: list[tuple[str, float | None, dict[str, Any]]] = [
    ("zero-shot", None, {}),
    ("in-context", None, {}),
    ("gd", 0.1, {}),
    ("lcgd", 0.1, {}),
    ("gd-all", 0.1, {}),
    ("gd-linearized", 0.1, {}),
    ("dilution", None, {}),
    ("task-vector", None, {"layer": 1, "dummies": 2}),
    ("function-vector", None, {"layer": 1, "which": ((0, 1), (1, 0)), "prompts": 4}),
    ("static-patch", None, {"fit": 6}),
    ("context-patch", None, {}),
]


@pytest.mark.parametrize("family", EVERYWHERE)
@pytest.mark.parametrize("rslora", [False, True])
def test_active_and_merged_learn_alike(tmp_path: Path, family: str, rslora: bool) -> None:
    """W + s B A moves as W does, so that all traces, changes and rows are the same but for what is relative to W."""
    where = {"target_modules": EVERYWHERE[family], "use_rslora": rslora}
    model, adapter, wanted = make(tmp_path, family, **where)
    merged, active = (load(model, adapter, mode, dtype="float64") for mode in ("merged", "active"))
    plain = Model.load(str(model), device="cpu", dtype="float64")
    with torch.no_grad():
        torch.testing.assert_close(active.hf(TOKENS).logits.float(), wanted, rtol=1e-4, atol=1e-5)
    for (name, weight), own in zip(active.hf.named_parameters(), plain.hf.parameters(), strict=True):
        assert torch.equal(weight, own), name  # the model's own, and nothing else is a parameter
    lesson = tiny_lesson(merged)
    want = frozenset({"exits", "mass", "kendall", "direct"})
    benches = [Bench(one, lesson, want=want) for one in (merged, active)]
    for learner, rate, options in LEARNERS[: None if not rslora else 3]:
        found, right = (bench.learned(learner, rate, **options) for bench in reversed(benches))
        for name in ("attn_out", "attn_scores", "residual", "label_logprobs"):
            pair = getattr(found.trace, name), getattr(right.trace, name)
            torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10, equal_nan=True, msg=f"{learner}: {name}")
        if isinstance(found.change, Delta):
            assert isinstance(right.change, Delta)
            for name, change in right.change.items():
                torch.testing.assert_close(found.change[name], change, rtol=1e-9, atol=1e-11)
    rows = [measure_cell(bench, identify("gd", lr=0.1)).rows for bench in benches]
    for one, other in zip(*rows, strict=True):
        assert one["metric"] == other["metric"]
        # The one is relative to W + s B A, the other to W; and rounding is not the same.
        if one["metric"] not in ("update_norm", "snr", "snr_centered", "snr_orthogonal", "snr_scores"):
            assert one["value"] == pytest.approx(other["value"], rel=1e-8, abs=1e-9, nan_ok=True), one["metric"]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_change_beside_the_weights_counts_an_active_adapter_once(tmp_path: Path, family: str) -> None:
    """As changes of 16-bit weights act, and those that are linearised: the layer's hooks run once, not twice."""
    model, adapter, _ = make(tmp_path, family, target_modules=EVERYWHERE[family])
    active = load(model, adapter, "active", dtype="float64")
    parameters = dict(active.hf.named_parameters())
    torch.manual_seed(1)
    changes = {
        name: 0.1 * torch.randn_like(weight)
        for name, weight in parameters.items()
        if low_rank_of(active.hf.get_submodule(name.rpartition(".")[0])) is not None
    }
    assert len(changes) >= 8
    with torch.no_grad():
        before = active.hf(TOKENS).logits
        with shadowed(active, changes):
            beside = active.hf(TOKENS).logits
        for name, change in changes.items():
            parameters[name] += change
        torch.testing.assert_close(beside, active.hf(TOKENS).logits, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(beside, before, atol=1e-3)


def test_variants_and_names_of_an_active_adapter(tmp_path: Path) -> None:
    model, adapter, _ = make(tmp_path, "gpt2")
    active = load(model, adapter, "active")
    assert active.name == f"{model}+adapter (active)"
    assert low_rank_of(active.attentions[0].get_submodule("c_attn")) is not None
    digests = [model_digest(str(model), adapter=str(adapter), mode=mode) for mode in ("merged", "active")]
    assert len(set(digests)) == 2
    drawn = [load(model, adapter, mode, variant="untrained") for mode in ("merged", "active")]
    assert all(torch.equal(a, b) for a, b in zip(*(one.hf.parameters() for one in drawn), strict=True))
    assert not any(low_rank_of(module) for module in drawn[1].hf.modules())
    with pytest.raises(InputError, match=r"'shuffled' mixes the weights.*leave out one of --variant shuffled"):
        load(model, adapter, "active", variant="shuffled")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_dora": True}, r"does more to 'transformer.h.0.attn.c_attn' than add a product"),
        ({"lora_bias": True}, r"than add a product of two matrices.*merge it instead"),
        ({"target_modules": ["wte"], "fan_in_fan_out": False}, r"does more to 'transformer.wte' than"),
        ({"modules_to_save": ["ln_1"]}, r"replaces whole modules \(modules_to_save\); merge it instead"),
    ],
)
def test_what_cannot_stay_active_is_said(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    model, adapter, _ = make(tmp_path, "gpt2", **settings)
    with pytest.raises(InputError, match=said):
        load(model, adapter, "active")
