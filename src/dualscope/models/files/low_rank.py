"""An adapter that stays beside the weights: y = W x + s B A x, W the model's own.

The model's modules stay what they are, and so do the names of its weights: the adapter is a hook on each linear layer
that it changes. What learns is W, and because W + s B A moves as W does, its gradient is that of the merged weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dualscope.core.errors import InputError

MERGE = "merge it instead (--adapter-mode merged)"


@dataclass(eq=False)
class LowRank:
    """What an adapter adds to one linear layer, as a forward hook.

    >>> import torch
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
        added: Tensor = nn.functional.linear(nn.functional.linear(x, self.down), self.up) * self.scale
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
