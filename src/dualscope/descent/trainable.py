"""The weights that a learner may move, while it moves them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dualscope.descent.delta import Delta, acts_beside
from dualscope.descent.parameters import Dense, Gradient, Outer, Slot, is_low, squared_norms, wide
from dualscope.descent.updates import Projection, beside, even_tangents, projections, shadowed

if TYPE_CHECKING:
    from dualscope.models.model import Model

P = TypeVar("P", bound=Projection)
# Gradients of float16 activations underflow: below 6e-8 there is nothing. So they are computed this much larger.
_HALF_SCALE = 1024.0


def weights_for(model: Model, slots: Sequence[Slot], tangent: bool = False) -> Weights:
    """The weights to train: changed in place, or beside where that is cheaper (a GPU) or needed (16 bits)."""
    at_side = not tangent and acts_beside(model, slots)
    return BesideWeights(model, slots) if at_side else Weights(model, slots, tangent)


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
        self.changes: Dense = {}
        self.leaves: dict[str, Tensor] = {}  # parameter name -> what gradients are taken of
        self._originals: dict[str, Tensor] = {}
        self._indices: dict[tuple[int | None, ...], Tensor] = {}
        # Slot name -> its place in the leaf, and in the original where that is what moves.
        self._places: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Weights:
        parameters = dict(self.model.hf.named_parameters())
        names = list(dict.fromkeys(slot.parameter for slot in self.slots))
        dtype = wide(self.model.dtype)
        with ExitStack() as stack:
            self._freeze(stack)
            if self.beside:
                self.leaves = {name: torch.zeros_like(parameters[name], dtype=dtype).requires_grad_() for name in names}
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
            for slot in self.slots:
                before = self._originals.get(slot.parameter)
                own = slot.view(self.leaves[slot.parameter].detach())
                self._places[slot.name] = own, None if before is None else slot.view(before)
            self._stack = stack.pop_all()
        return self

    def _freeze(self, stack: ExitStack) -> None:
        """Inside the stack the model is in eval mode and no parameter learns."""
        stack.enter_context(self.model.running())
        for parameter in self.model.hf.parameters():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def gradient(
        self,
        loss: Tensor,
        layer: int | None = None,
        also: Sequence[Tensor] = (),
        seed: Tensor | None = None,
        keeps_graph: bool = False,
    ) -> tuple[Gradient, Sequence[Tensor]]:
        """The gradient of ``loss`` by slot (those of one layer only, if given), and of the tensors ``also``.

        With ``seed`` (the derivative of a scalar with respect to ``loss``) that scalar's gradient. ``keeps_graph``:
        other gradients will be taken through the same graph.
        """
        own = self._graph_tensors(layer)
        scale = _HALF_SCALE if self.model.dtype == torch.float16 else 1.0
        if scale != 1.0:
            seed = torch.full_like(loss, scale) if seed is None else seed * scale
        found = torch.autograd.grad(
            loss, [*own, *also], seed, retain_graph=keeps_graph or None, allow_unused=True, materialize_grads=True
        )
        if scale != 1.0:
            found = tuple(value.float() / scale for value in found)
        return self._by_slot(layer, found[: len(own)]), found[len(own) :]

    def _graph_tensors(self, layer: int | None) -> list[Tensor]:
        """The tensors of the graph from whose gradients those of a layer's slots (of all slots) follow."""
        return [self.leaves[name] for name in self._names(layer)]

    def _by_slot(self, layer: int | None, gradients: Sequence[Tensor]) -> Gradient:
        """The slots' gradients from those of `_graph_tensors`."""
        by_name = dict(zip(self._names(layer), gradients, strict=True))
        return {slot.name: slot.get(by_name[slot.parameter]) for slot in self._of(layer)}

    def _of(self, layer: int | None) -> list[Slot]:
        return [slot for slot in self.slots if layer is None or slot.layer == layer]

    def _names(self, layer: int | None) -> list[str]:
        return list(dict.fromkeys(slot.parameter for slot in self._of(layer)))

    @contextmanager
    def along_change(self) -> Iterator[None]:
        """Forward-mode derivatives at the original weights, in the direction of the change so far."""
        along = self._direction()
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(leaf, along[name]) for name, leaf in self.leaves.items()}
            with shadowed(self.model, dual), even_tangents(self.model):
                yield

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """The original weights, in a graph that knows of a change beside them."""
        with shadowed(self.model, self.leaves):
            yield

    def derivative(self, outputs: Tensor) -> Tensor:
        """Of what was computed ``at_start``, in the direction of the change so far: J.change by two backward passes.

        The map v -> v^T J is linear in v, so the derivative of (v^T J) . change by v is J.change.
        """
        along, v = self._direction(), torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, list(self.leaves.values()), v, create_graph=True)
        return torch.autograd.grad(pulled, v, list(along.values()))[0]

    def _direction(self) -> dict[str, Tensor]:
        full = {name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in self.leaves.items()}
        for slot in self.slots:
            slot.add_(full[slot.parameter], self.changes[slot.name])
        return full

    @torch.no_grad()
    def move(self, direction: Gradient, size: float = 1.0) -> None:
        """Add size x direction to the weights, by slot; slots that it does not name stay."""
        moved = [slot for slot in self.slots if slot.name in direction]
        self._change(direction, size)
        self._put_together({slot.parameter for slot in moved})

    @torch.no_grad()
    def reset(self) -> None:
        """As if no step had been taken."""
        for change in self.changes.values():
            change.zero_()
        self._put_together(self.leaves.keys())

    def _put_together(self, parameters: Collection[str]) -> None:
        """Each slot's weights anew: the originals plus the whole change, or the change alone where it acts beside."""
        if self.tangent:
            return
        for slot in self.slots:
            if slot.parameter in parameters:
                own, before = self._places[slot.name]
                change = self.changes[slot.name].view(own.shape)
                if before is None:
                    own.copy_(change)
                else:
                    torch.add(before, change, out=own)

    def _change(self, direction: Gradient, size: float) -> None:
        values = {name: value for name, value in direction.items() if isinstance(value, Tensor)}
        by_device: dict[torch.device, list[str]] = {}
        for name in values:
            by_device.setdefault(self.changes[name].device, []).append(name)
        for names in by_device.values():
            torch._foreach_add_([self.changes[n] for n in names], [values[n] for n in names], alpha=size)
        for name, value in direction.items():
            if isinstance(value, Outer):
                value.add_to(self.changes[name], size)

    @torch.no_grad()
    def norms(self, values: Gradient) -> Tensor:
        """The norm of each layer's share (weights and biases together), [layers], left on the device."""
        device = self.model.device
        squares = torch.zeros(self.model.n_layers, dtype=wide(self.model.dtype), device=device)
        inside = [slot for slot in self.slots if slot.layer is not None and slot.name in values]
        if inside:
            found = squared_norms([values[slot.name] for slot in inside])
            together = torch.stack([square.to(device, squares.dtype) for square in found])
            squares.index_add_(0, self._index(tuple(slot.layer for slot in inside)), together)
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
            before[slot.name] = slot.get(parameter)
        return self.norms({**self.changes}) / self.norms(before)

    def delta(self) -> Delta:
        """The change so far, as a copy."""
        return Delta({name: change.clone() for name, change in self.changes.items()})

    def _restore(self) -> None:
        with torch.no_grad():
            for name, original in self._originals.items():
                self.leaves[name].copy_(original)
        self._originals, self._places = {}, {}


class ProjectionWeights(Weights, Generic[P]):
    """Key and value parts that change beside the weights, projection by projection.

    A gradient is not multiplied out: it is kept as a projection's inputs and the errors of its output.
    """

    projections: Sequence[P] = ()

    def _running(self, layer: int | None) -> list[P]:
        return [one for one in self.projections if layer is None or one.layer == layer]

    def _graph_tensors(self, layer: int | None) -> list[Tensor]:
        own = self._running(layer)
        outputs = [one.seen[1] for one in own if one.seen is not None]
        assert len(outputs) == len(own), "a projection did not run"
        return outputs

    def _by_slot(self, layer: int | None, gradients: Sequence[Tensor]) -> Gradient:
        found: Gradient = {}
        for projection, errors in zip(self._running(layer), gradients, strict=True):
            assert projection.seen is not None
            found |= self._of_projection(projection, projection.seen[0], errors.to(wide(self.model.dtype)))
            projection.seen = None
        return found

    @abstractmethod
    def _of_projection(self, projection: P, inputs: Tensor, errors: Tensor) -> Gradient:
        """The gradients of a projection's parts."""

    @torch.no_grad()
    def move(self, direction: Gradient, size: float = 1.0) -> None:
        self._change(direction, size)


class BesideWeights(ProjectionWeights[Projection]):
    """The changes of one training beside the weights."""

    def __enter__(self) -> BesideWeights:
        with ExitStack() as stack:
            self._freeze(stack)
            for slot in self.slots:
                own = slot.get(self.model.hf.get_parameter(slot.parameter).detach())
                self.changes[slot.name] = torch.zeros(own.shape, dtype=wide(self.model.dtype), device=own.device)
            self.projections = projections(self.slots, self.changes, watch=True)  # type: ignore[arg-type]
            stack.enter_context(beside(self.model, self.projections))
            self._stack = stack.pop_all()
        return self

    def _of_projection(self, projection: Projection, inputs: Tensor, errors: Tensor) -> Gradient:
        rows = inputs.flatten(0, -2).to(errors.dtype)
        return {
            part.name: Outer(projection.share(part, errors), rows if part.kind == "weight" else None)
            for part in projection.parts
        }

    def delta(self) -> Delta:
        return Delta(self.changes)
