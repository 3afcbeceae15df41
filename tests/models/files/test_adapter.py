"""LoRA adapters, made here, merged into the model that they were made for, and refused by any other."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.files.digest import model_digest
from dualscope.studies.cell import Place
from tests.models.tiny import tiny_model

peft = pytest.importorskip("peft")
TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}
TOKENS = torch.tensor([[1, 5, 9, 7, 3]])


def make(tmp_path: Path, family: str) -> tuple[Path, Path, torch.Tensor]:
    """A model's folder, an adapter's, and the logits of the two together, as peft computes them."""
    hf, tokenizer = tiny_model(family)
    hf.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=2, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2", init_lora_weights=False
    )
    adapted = peft.get_peft_model(hf, config).eval()
    adapted.save_pretrained(str(tmp_path / "adapter"))
    with torch.no_grad():
        return tmp_path / "model", tmp_path / "adapter", adapted(TOKENS).logits


def load(model: Path, adapter: Path) -> Model:
    return Model.load(str(model), device="cpu", adapter=str(adapter))


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
    plain, adapted = Place("embedded", "w"), Place("embedded", "w2", adapter="some/where/mine")
    assert "adapter" not in plain.facts
    assert adapted.facts == plain.facts | {"model": "embedded+mine", "weights": "w2"}


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
