"""LoRA adapters: which files one is, and putting it into the model that it was trained for, or beside its weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import json_of, reading, reason
from dualscope.core.words import AdapterMode
from dualscope.models.files.source import weights_header

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PLAIN = (True, False, None, "gaussian")  # ways to begin that leave the model's own weights as they are


def adapter_files(folder: str) -> list[Path]:
    """Configuration and weights of an adapter; an explanation where they are not there, or cannot be merged."""
    path = Path(os.path.expanduser(folder))
    if not os.path.isdir(path):  # which says no of a name that cannot be one, too
        raise InputError(f"adapter '{folder}': no such folder; give the one that holds {CONFIG}")
    if (path / PICKLED).exists() and not (path / WEIGHTS).exists():
        raise InputError(
            f"adapter '{folder}' has pickled weights only ({PICKLED}), which can run code when loaded; save it again "
            "with peft's save_pretrained, which writes safetensors"
        )
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise InputError(f"adapter '{folder}': there is no {name} in it")
    _check(json_of(path / CONFIG, "copy the folder again"), folder)
    weights_header([path / WEIGHTS], folder)
    return [path / CONFIG, path / WEIGHTS]


def adapted(hf: Any, folder: str, model: str, mode: AdapterMode) -> Any:
    """The model with an adapter: ``merged``, added to its weights, it is from then on a model like any other;
    ``active``, it stays beside them, and the weights are the model's own.
    """
    from dualscope.models.files.low_rank import attach, paths_of

    wrapped = _wrapped(hf, folder, model)
    if mode == "active":
        paths = paths_of(wrapped, hf, folder)
        plain = wrapped.unload()
        attach(plain, paths)
        return plain
    with reading(f"adapter '{folder}'"):
        return wrapped.merge_and_unload(safe_merge=True)


def _wrapped(hf: Any, folder: str, model: str) -> Any:
    """As peft wraps it, and nothing of the files left out or begun anew."""
    config, weights = adapter_files(folder)
    header = weights_header([weights], folder)
    try:
        import peft
    except ImportError:
        raise InputError(
            f"adapter '{folder}': peft is not installed; install it with pip install 'dualscope[adapters]'"
        ) from None
    misfit = f"adapter '{folder}' does not fit model '{model}'"
    try:
        with network.offline():
            wrapped = peft.PeftModel.from_pretrained(hf, str(config.parent))
    except Exception as error:  # peft raises whatever the files make it stumble over
        raise InputError(f"{misfit} ({reason(error)}); give the model that it was trained for") from error
    places = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    # peft would leave out what has no place, and begin anew what is not there.
    if wrong := sorted(places.keys() ^ header.keys()):
        raise InputError(f"{misfit} ({len(wrong)} tensors are only in one of them: {wrong[0]}, ...)")
    return wrapped


def _check(written: dict[str, Any], folder: str) -> None:
    kind = written.get("peft_type")
    if kind != "LORA":
        raise InputError(f"adapter '{folder}': only LoRA adapters can be merged; peft_type is {kind!r}")
    rank = written.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise InputError(f"adapter '{folder}': its rank 'r' is a whole number above 0, found {rank!r}")
    if written.get("megatron_config") is not None:  # names a module to import
        raise InputError(f"adapter '{folder}': adapters of Megatron layers are not read (megatron_config)")
    begun = written.get("init_lora_weights", True)
    if begun not in PLAIN:
        raise InputError(
            f"adapter '{folder}': begun with {begun!r}, which changes the model's own weights too; convert it to plain "
            "LoRA first (peft: save_pretrained(..., path_initial_model_for_weight_conversion=...))"
        )
