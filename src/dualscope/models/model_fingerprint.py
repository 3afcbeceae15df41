"""Tells whether a plugin's code has changed a model's weights, hooks or methods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

CHUNK = 2**22  # numbers that are summed at a time
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class ModelFingerprint:
    """A module's weights by two checksums each, and how many hooks and replaced methods it has.

    >>> layer = nn.Linear(2, 2)
    >>> seal = ModelFingerprint.of(layer)
    >>> seal.broken(layer) is None
    True
    >>> layer.weight.data[0, 0] += 1  # which no version counter would tell
    >>> seal.broken(layer)
    "the weight 'weight'"
    """

    sums: dict[str, tuple[int, ...]]
    hooks: int

    @classmethod
    def of(cls, module: nn.Module) -> ModelFingerprint:
        sums = {name: checksums(weight.detach()) for name, weight in module.named_parameters()}
        parts = list(module.modules())
        hooks = sum(len(getattr(part, kind)) for part in parts for kind in HOOKS)
        return cls(sums, hooks + sum("forward" in vars(part) for part in parts))

    def broken(self, module: nn.Module) -> str | None:
        """What is not as it was, in words; None where everything is."""
        now = ModelFingerprint.of(module)
        for name in {**self.sums, **now.sums}:
            if self.sums.get(name) != now.sums.get(name):
                return f"the weight '{name}'"
        return None if self.hooks == now.hooks else "its hooks or methods"


@torch.no_grad()
def checksums(weight: Tensor) -> tuple[int, ...]:
    """Sums of the numbers' bits, plain and weighted by place: an exchange of two numbers changes the second."""
    bits = (
        (weight.view(torch.uint8) if weight.dtype == torch.bool else weight)
        .contiguous()
        .view(-1)
        .view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()])
    )
    ramp = torch.arange(1, min(CHUNK, bits.numel()) + 1, device=weight.device)
    found = [torch.tensor(bits.numel(), device=weight.device)]
    for chunk in bits.split(CHUNK):
        wide = chunk.long()
        found += [wide.sum(), (wide * ramp[: len(wide)]).sum()]
    return tuple(torch.stack(found).tolist())
