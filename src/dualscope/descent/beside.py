"""Changes of the key and value parts that act beside the weights: W x + dW x.

The weights are never touched, so there is nothing to keep a copy of and nothing to put back; and 16-bit weights, which
would swallow a small change, do not have to hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dualscope.descent.delta import Delta, acts_beside
from dualscope.descent.parameters import Slot, wide
from dualscope.descent.trainable import Gradient, Weights

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.models.parts import Part


def weights_for(model: Model, slots: Sequence[Slot], tangent: bool = False) -> Weights:
    """The weights to train: changed in place, or beside where that is cheaper (a GPU) or needed (16 bits)."""
    return (
        BesideWeights(model, slots)
        if not tangent and acts_beside(model, slots)
        else Weights(model, slots, tangent)
    )


class BesideWeights(Weights):
    """Key and value parts whose changes are leaves of their own."""

    def __enter__(self) -> BesideWeights:
        with ExitStack() as stack:
            stack.enter_context(self.model.running())
            for parameter in self.model.hf.parameters():
                stack.callback(parameter.requires_grad_, parameter.requires_grad)
                parameter.requires_grad_(False)
            for slot in self.slots:
                own = slot.get(self.model.hf.get_parameter(slot.parameter).detach())
                change = torch.zeros(own.shape, dtype=wide(self.model.dtype), device=own.device)
                self.changes[slot.name] = change.requires_grad_()
            self.leaves = self.changes
            stack.enter_context(beside(self.model, self.slots, self.changes))  # type: ignore[arg-type]
            self._stack = stack.pop_all()
        return self

    def _leaf(self, slot: Slot) -> str:
        return slot.name

    def _share(self, slot: Slot, gradient: Tensor) -> Tensor:
        return gradient

    @torch.no_grad()
    def move(self, direction: Gradient, size: float = 1.0) -> None:
        torch._foreach_add_([self.changes[n] for n in direction], list(direction.values()), alpha=size)

    def delta(self) -> Delta:
        return Delta({name: change.detach() for name, change in self.changes.items()})


@contextmanager
def beside(model: Model, parts: Sequence[Part], changes: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside ``with`` the projections give what they would with ``changes`` (part name -> [out, in] or [out]) added."""
    by_module: dict[str, list[Part]] = {}
    for part in parts:
        by_module.setdefault(part.parameter.rpartition(".")[0], []).append(part)
    with ExitStack() as stack:
        for path, own in by_module.items():
            module = model.hf.get_submodule(path)
            stack.callback(module.register_forward_hook(_hook(own, changes)).remove)
        yield


def _hook(parts: Sequence[Part], changes: Mapping[str, Tensor]) -> Any:
    weights = [part for part in parts if part.kind == "weight"]
    biases = {part.role: part for part in parts if part.kind == "bias"}

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = args[0]
        output = output.clone() if output.is_leaf else output
        for part in weights:
            bias = biases.get(part.role)
            add = F.linear(
                x,
                changes[part.name].to(x.dtype),
                None if bias is None else changes[bias.name].to(x.dtype),
            )
            view = part.view_output(output)
            view += add.view(view.shape)
        for role, bias in biases.items():
            if all(part.role != role for part in weights):
                view = bias.view_output(output)
                view += changes[bias.name].to(x.dtype).view(view.shape[-1 if bias.rows is None else -2 :])
        return output

    return hook
