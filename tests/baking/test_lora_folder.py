"""Adapters that plain peft loads: the same logits as the change that was learned, and a folder whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.baking import lora_folder
from dualscope.baking.baked_adapter import adapter_applied
from dualscope.baking.carried_changes import CarriedChange, carried
from dualscope.baking.lora_folder import adapter_config, check_new, write_adapter
from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.models import Model
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from tests.learners.setting import tiny_bench

FAMILIES = ("gpt2", "gpt_neox", "llama", "phi3", "opt", "codegen", "falcon")
LEARNERS: tuple[tuple[str, float | None, dict[str, Any]], ...] = (
    ("gd", 0.5, {}),
    ("static-patch", None, {"fit": 6, "every_token": True}),
)
TOKENS = torch.tensor([[1, 5, 9, 7, 3, 12]])


def logits(model: Model) -> Tensor:
    """Of every token, with whatever acts inside the reading."""
    with torch.no_grad(), model.running(), capturing(model, Session(acts=slice(None), query_ids=("",))):
        return model.forward(TOKENS)


@pytest.mark.parametrize(
    ("family", "learner", "lr", "options"),
    [
        *((family, *learner) for family in FAMILIES for learner in LEARNERS),
        ("deepseek_v3", *LEARNERS[0]),  # a mixture of experts, whose MLPs peft would take for experts
    ],
)
def test_peft_computes_what_the_learner_changed(
    family: str, learner: str, lr: float | None, options: dict[str, Any], tmp_path: Path
) -> None:
    """Heads that share keys, fused and transposed matrices, biases; in float64, so that what differs is no rounding."""
    peft = pytest.importorskip("peft")
    bench = tiny_bench(family)
    model = bench.model
    change = bench.learned(learner, lr, **options).change
    assert change is not None
    layers = carried(model, change)
    with change.applied(model):
        wanted = logits(model)
    with adapter_applied(model, layers):
        beside = logits(model)
    plain = logits(model)
    write_adapter(tmp_path / "adapter", model, layers, "tiny", "# a card\n")
    loaded = peft.PeftModel.from_pretrained(model.hf, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        found = loaded(TOKENS).logits
    assert float((wanted - plain).abs().max()) > 1e-2
    torch.testing.assert_close(beside, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def some_layers() -> tuple[Bench, dict[str, CarriedChange]]:
    bench = tiny_bench("llama")
    return bench, carried(bench.model, bench.learned("gd", 0.5).change)


def test_layers_of_other_ranks_are_scaled_alike(tmp_path: Path) -> None:
    """peft scales by alpha / r: where a layer's rank is another, so is its alpha."""
    peft = pytest.importorskip("peft")
    bench, layers = some_layers()
    first = next(iter(layers))
    layers[first] = layers[first].cut_to(2)
    written = adapter_config(bench.model, layers, "tiny")
    assert written["rank_pattern"] == written["alpha_pattern"]
    assert written["rank_pattern"][first] == 2
    write_adapter(tmp_path / "adapter", bench.model, layers, "tiny", "")
    with adapter_applied(bench.model, layers):
        wanted = logits(bench.model)
    loaded = peft.PeftModel.from_pretrained(bench.model.hf, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(TOKENS).logits, wanted, rtol=0, atol=1e-5)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in (".", "link"):
        with pytest.raises(InputError, match="exists; give a folder that does not exist yet"):
            check_new(tmp_path / name)
    check_new(tmp_path / "new")


def test_whoever_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, layers = some_layers()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lora_folder, "save_file", full)
        with pytest.raises(OSError, match="No space"):
            write_adapter(tmp_path / "made" / "adapter", bench.model, layers, "tiny", "")
    assert list((tmp_path / "made").iterdir()) == []
    written = write_adapter(tmp_path / "made" / "adapter", bench.model, layers, "tiny", "# card\n")
    assert [path.name for path in written] == ["adapter_config.json", "adapter_model.safetensors", "README.md"]
    assert sorted(os.listdir(tmp_path / "made")) == ["adapter"]
    assert json.loads(written[0].read_text())["peft_type"] == "LORA"
