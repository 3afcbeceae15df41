"""The weights that a learner may move, while it moves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dualscope.descent.delta import Delta
from dualscope.descent.parameters import Slot, is_low, wide
from dualscope.descent.shadow import shadowed

if TYPE_CHECKING:
    from dualscope.models.model import Model

# Gradients of float16 activations underflow: below 6e-8 there is nothing. So they are computed this much larger.
_HALF_SCALE = 1024.0

Gradient = dict[str, Tensor]  # slot name -> canonical [out, in] or [out]


class Weights:
    """Inside ``with``: the model in eval mode, and gradients for these slots alone. Afterwards bitwise as before.

    The weights are always the originals plus ``delta``, which is kept apart and wide, so that nothing is lost to
    rounding in the sum, and applying the delta later gives exactly the weights that the learner saw. 16-bit
    weights never move: the change acts beside them. With ``tangent`` no weight moves either, and inside
    ``along_change()`` everything that the model computes carries its derivative in the direction of the change.
    """

    def __init__(self, model: Model, slots: Sequence[Slot], tangent: bool = False) -> None:
        self.model, self.slots, self.tangent = model, list(slots), tangent
        self.beside = tangent or is_low(model)
        self.changes: Gradient = {}
        self.leaves: dict[str, Tensor] = {}  # parameter name -> what gradients are taken of
        self._originals: dict[str, Tensor] = {}
        self._indices: dict[tuple[int | None, ...], Tensor] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Weights:
        parameters = dict(self.model.hf.named_parameters())
        names = list(dict.fromkeys(slot.parameter for slot in self.slots))
        dtype = wide(self.model.dtype)
        with ExitStack() as stack:
            stack.enter_context(self.model.running())
            for parameter in parameters.values():
                stack.callback(parameter.requires_grad_, parameter.requires_grad)
                parameter.requires_grad_(False)
            if self.beside:
                self.leaves = {
                    name: torch.zeros_like(parameters[name], dtype=dtype).requires_grad_() for name in names
                }
                if not self.tangent:
                    stack.enter_context(shadowed(self.model, self.leaves))
            else:
                self._originals = {name: parameters[name].detach().clone() for name in names}
                stack.callback(self._restore)
                self.leaves = {name: parameters[name].requires_grad_() for name in names}
            self.changes = {
                slot.name: torch.zeros_like(slot.get(self.leaves[slot.parameter].detach()), dtype=dtype)
                for slot in self.slots
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def gradient(
        self, loss: Tensor, layer: int | None = None, also: Sequence[Tensor] = (), seed: Tensor | None = None
    ) -> _Split:
        """The gradient of ``loss`` by slot (those of one layer only, if given), and of the tensors ``also``.

        With ``seed`` (the derivative of a scalar with respect to ``loss``) that scalar's gradient.
        """
        slots = [slot for slot in self.slots if layer is None or slot.layer == layer]
        names = list(dict.fromkeys(self._leaf(slot) for slot in slots))
        scale = _HALF_SCALE if self.model.dtype == torch.float16 else 1.0
        if scale != 1.0:
            seed = torch.full_like(loss, scale) if seed is None else seed * scale
        found = torch.autograd.grad(
            loss, [*(self.leaves[n] for n in names), *also], seed, allow_unused=True, materialize_grads=True
        )
        if scale != 1.0:
            found = tuple(value.float() / scale for value in found)
        by_name = dict(zip(names, found, strict=False))
        shares = {slot.name: self._share(slot, by_name[self._leaf(slot)]) for slot in slots}
        return shares, found[len(names) :]

    def _leaf(self, slot: Slot) -> str:
        """The name of the leaf that holds a slot."""
        return slot.parameter

    def _share(self, slot: Slot, gradient: Tensor) -> Tensor:
        """A slot's share of its leaf's gradient."""
        return slot.get(gradient)

    @contextmanager
    def along_change(self) -> Iterator[None]:
        """Forward-mode derivatives at the original weights, in the direction of the change so far."""
        full = {name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in self.leaves.items()}
        for slot in self.slots:
            slot.add_(full[slot.parameter], self.changes[slot.name])
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(leaf, full[name]) for name, leaf in self.leaves.items()}
            with shadowed(self.model, dual):
                yield

    @torch.no_grad()
    def move(self, direction: Gradient, size: float = 1.0) -> None:
        """Add size x direction to the weights, by slot; slots that it does not name stay."""
        moved = [slot for slot in self.slots if slot.name in direction]
        for slot in moved:
            self.changes[slot.name].add_(direction[slot.name], alpha=size)
        if self.tangent:
            return
        for name in dict.fromkeys(slot.parameter for slot in moved):
            leaf = self.leaves[name]
            if self.beside:
                leaf.zero_()
            else:
                leaf.copy_(self._originals[name])
        # A fused matrix is put together anew from all of its slots, also from those that did not move now.
        touched = {slot.parameter for slot in moved}
        for slot in self.slots:
            if slot.parameter in touched:
                slot.add_(self.leaves[slot.parameter].detach(), self.changes[slot.name])

    @torch.no_grad()
    def norms(self, values: Gradient) -> Tensor:
        """The norm of each layer's share (weights and biases together), [layers], left on the device."""
        squares = torch.zeros(self.model.n_layers, dtype=wide(self.model.dtype), device=self.model.device)
        inside = [slot for slot in self.slots if slot.layer is not None and slot.name in values]
        if inside:
            layers = self._index(tuple(slot.layer for slot in inside))
            found = torch.stack(torch._foreach_norm([values[slot.name] for slot in inside]))
            squares.index_add_(0, layers, found.to(squares.dtype).square())
        return squares.sqrt()

    def _index(self, layers: tuple[int | None, ...]) -> Tensor:
        """On the device, and made once: a copy from the host in every step would wait for it."""
        if layers not in self._indices:
            self._indices[layers] = torch.tensor(layers, device=self.model.device)
        return self._indices[layers]

    def update_norms(self) -> Tensor:
        """How far each layer's slots moved, relative to their size before, [layers]."""
        before: Gradient = {}
        for slot in self.slots:
            parameter = self._originals.get(slot.parameter)
            if parameter is None:  # it acts beside the weights, which never moved
                parameter = self.model.hf.get_parameter(slot.parameter).detach()
            before[slot.name] = slot.get(parameter).to(wide(self.model.dtype))
        return self.norms(self.changes) / self.norms(before)

    def delta(self) -> Delta:
        """The change so far, as a copy."""
        return Delta({name: change.clone() for name, change in self.changes.items()})

    def _restore(self) -> None:
        with torch.no_grad():
            for name, original in self._originals.items():
                self.leaves[name].copy_(original)
        self._originals = {}


_Split = tuple[Gradient, Sequence[Tensor]]
