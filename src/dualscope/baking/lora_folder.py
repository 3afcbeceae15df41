"""An adapter in peft's own format, in a folder that appears whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from dualscope.core.errors import InputError
from dualscope.core.folder import flush, share
from dualscope.models.loading.adapter import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from dualscope.baking.carried_changes import CarriedChange
    from dualscope.models.model import Model

CARD = "README.md"


def adapter_config(model: Model, layers: Mapping[str, CarriedChange], base: str) -> dict[str, Any]:
    """The fields that peft reads. Every layer has a rank of its own, and is scaled by 1."""
    ranks = {name: change.factors.rank for name, change in layers.items()}
    most = max(ranks.values())
    own = {name: rank for name, rank in ranks.items() if rank != most}
    modules = [model.hf.get_submodule(name) for name in layers]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "init_lora_weights": True,
        "r": most,
        "lora_alpha": most,
        "rank_pattern": own,
        "alpha_pattern": own,
        "lora_dropout": 0.0,
        "bias": "none",
        "lora_bias": any(change.bias is not None for change in layers.values()),
        "fan_in_fan_out": any(not isinstance(module, nn.Linear) for module in modules),
        "target_modules": sorted(layers),
    }


def adapter_tensors(layers: Mapping[str, CarriedChange]) -> dict[str, torch.Tensor]:
    """By the names that peft gives them."""
    biased = any(change.bias is not None for change in layers.values())
    found = {}
    for name, change in layers.items():
        path = f"base_model.model.{name}.lora"
        found[f"{path}_A.weight"] = change.factors.down.contiguous()
        found[f"{path}_B.weight"] = change.factors.up.contiguous()
        if biased:
            none = torch.zeros(len(change.factors.up))
            found[f"{path}_B.bias"] = (none if change.bias is None else change.bias).contiguous()
    return found


def check_new(out: Path) -> None:
    """Refuse a folder that is there already, before anything is computed."""
    if out.exists() or out.is_symlink():
        raise InputError(f"'{out}' exists; give a folder that does not exist yet")


def write_adapter(
    out: Path, model: Model, layers: Mapping[str, CarriedChange], base: str, card: str
) -> tuple[Path, Path, Path]:
    """Configuration, weights and card, written aside and put in place together."""
    check_new(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent)
    except OSError as error:
        raise InputError(f"'{out}' cannot be made ({error.strerror})") from None
    with aside as name:
        folder = Path(name) / "adapter"
        folder.mkdir()
        config = json.dumps(adapter_config(model, layers, base), indent=2, ensure_ascii=False)
        (folder / CONFIG).write_text(config + "\n", encoding="utf-8")
        (folder / CARD).write_text(card, encoding="utf-8")
        save_file(adapter_tensors(layers), str(folder / WEIGHTS), {"format": "pt"})
        for file in folder.iterdir():
            share(file)
            flush(file)
        flush(folder)
        check_new(out)
        os.rename(folder, out)
    flush(out.parent)
    return out / CONFIG, out / WEIGHTS, out / CARD
