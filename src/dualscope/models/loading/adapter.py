"""LoRA adapters: which files one is, and putting it into the model that it was trained for, or beside its weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualscope.core import network
from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import json_of, reading, reason
from dualscope.core.words import AdapterMode
from dualscope.models.loading.source import weights_header

if TYPE_CHECKING:  # which files an adapter is, is asked where nothing is computed
    from torch import Tensor, nn

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


# An adapter that stays beside the weights: y = W x + s B A x, W the model's own.
#
# The model's modules stay what they are, and so do the names of its weights: the adapter is a hook on each linear
# layer that it changes. What learns is W, and because W + s B A moves as W does, its gradient is that of the merged
# weights.


MERGE = "merge it instead (--adapter-mode merged)"


@dataclass(eq=False)
class LowRank:
    """What an adapter adds to one linear layer, as a forward hook.

    >>> import torch
    >>> from torch import nn
    >>> layer, path = nn.Linear(3, 2, bias=False), LowRank(torch.ones(1, 3), torch.ones(2, 1), 0.5)
    >>> _ = layer.register_forward_hook(path)
    >>> torch.allclose(layer(torch.eye(3)).T, layer.weight + path.matrix()), low_rank_of(layer) is path
    (True, True)
    """

    down: Tensor  # A, [rank, in]
    up: Tensor  # B, [out, rank]
    scale: float

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        # Devices differ where layers are split over several: what hands inputs on works inside of the layer.
        x = args[0].to(self.down.device, self.down.dtype)
        added: Tensor = x @ self.down.mT @ self.up.mT * self.scale
        return (output + added).to(output.dtype)

    def matrix(self) -> Tensor:
        """s B A: [out, in]."""
        found: Tensor = self.scale * (self.up @ self.down)
        return found


def low_rank_of(module: nn.Module) -> LowRank | None:
    """What an active adapter adds to a layer; None where there is none."""
    return next((hook for hook in module._forward_hooks.values() if isinstance(hook, LowRank)), None)


def matrix(module: nn.Module) -> Tensor:
    """A linear layer's weight as [out, in], with what an active adapter adds to it."""
    from torch import nn

    weight: Tensor = module.get_parameter("weight").detach()
    weight = weight if isinstance(module, nn.Linear) else weight.T  # GPT-2's Conv1D keeps [in, out]
    added = low_rank_of(module)
    return weight if added is None else weight + added.matrix().to(weight)


def paths_of(wrapped: Any, hf: nn.Module, folder: str) -> dict[str, LowRank]:
    """By the name of the layer in the model itself, of a model that peft has wrapped with one plain LoRA adapter."""
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import Linear

    (name,) = wrapped.peft_config
    if wrapped.peft_config[name].modules_to_save:
        raise InputError(f"adapter '{folder}' replaces whole modules (modules_to_save); {MERGE}")
    outside = {get() for get in (hf.get_input_embeddings, hf.get_output_embeddings)}  # type: ignore[operator]
    found = {}
    for path, layer in wrapped.base_model.model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        base = layer.get_base_layer()
        if type(layer) is not Linear or layer.lora_variant or layer.lora_bias[name] or base in outside:
            raise InputError(
                f"adapter '{folder}' does more to '{path}' than add a product of two matrices to a linear layer inside "
                f"a block; {MERGE}"
            )
        down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
        device = base.weight.device
        found[path] = LowRank(down.detach().to(device), up.detach().to(device), float(layer.scaling[name]))
    return found


def attach(hf: nn.Module, paths: dict[str, LowRank]) -> None:
    """Make an adapter active, for good."""
    for path, added in paths.items():
        hf.get_submodule(path).register_forward_hook(added)
