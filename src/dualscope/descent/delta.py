"""The change of a model's weights, kept apart from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dualscope.core.errors import InputError, suggest
from dualscope.descent.parameters import Slot, is_low, layer_of, slots_of, wide
from dualscope.descent.updates import beside, projections, shadowed
from dualscope.models.architecture.parts import Part

if TYPE_CHECKING:
    from dualscope.models.model import Model


class Delta(Mapping[str, Tensor]):
    """Changes by name, ``layers.3.key.weight`` -> [out, in], in float32 or wider.

    >>> delta = Delta({"layers.0.key.weight": torch.full((2, 2), 3.0), "layers.0.key.bias": torch.zeros(2)})
    >>> delta.norms(layers=2)
    tensor([6., 0.])
    >>> delta.scaled(0.5)["layers.0.key.weight"][0, 0]
    tensor(1.5000)
    """

    def __init__(self, changes: Mapping[str, Tensor]) -> None:
        self._changes = dict(changes)

    def __getitem__(self, name: str) -> Tensor:
        return self._changes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def norms(self, layers: int | None = None) -> Tensor:
        """The Euclidean norm of each layer's change, [layers]; weights outside the layers do not count."""
        squares: dict[int, Tensor] = {}
        zero = next(iter(self._changes.values())).new_zeros(())
        for name, change in self._changes.items():
            layer = layer_of(name)
            if layer is not None:
                # Layers may live on several devices; their norms meet on the first one's.
                square = torch.linalg.vector_norm(change).square().to(zero.device)
                squares[layer] = squares.get(layer, zero) + square
        n = max(squares, default=-1) + 1 if layers is None else layers
        return torch.stack([squares.get(layer, zero) for layer in range(n)]).sqrt()

    def scaled(self, factor: float) -> Delta:
        """All of it multiplied by a number."""
        return Delta({name: change * factor for name, change in self._changes.items()})

    def with_norms(self, norms: Tensor) -> Delta:
        """Each layer rescaled to a norm of its own, ``norms`` being [layers]; a layer of zeros stays."""
        own = self.norms(len(norms))
        factors = torch.where(own > 0, norms / own, torch.zeros_like(own))
        changes = {}
        for name, change in self._changes.items():
            layer = layer_of(name)
            changes[name] = change if layer is None else change * factors[layer].to(change.device)
        return Delta(changes)

    def randomised(self, seed: int, draw: int = 0) -> Delta:
        """Gaussian, each layer of the norm that this change has there. The same on every device."""
        state = int(np.random.SeedSequence([seed, 4, draw]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(state)
        noise = {
            name: torch.randn(change.shape, generator=generator, dtype=change.dtype).to(change.device)
            for name, change in self._changes.items()
        }
        return Delta(noise).with_norms(self.norms())

    def to(self, device: torch.device | str) -> Delta:
        return Delta({name: change.to(device) for name, change in self._changes.items()})

    def save(self, path: Path | str) -> None:
        """As a safetensors file."""
        save_file({name: change.contiguous() for name, change in self._changes.items()}, str(path))

    @classmethod
    def load(cls, path: Path | str) -> Delta:
        """What `save` wrote."""
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; a delta is a safetensors file written by Delta.save")
        return cls(load_file(str(path)))

    @contextmanager
    def applied(self, model: Model) -> Iterator[None]:
        """The model with its weights changed, inside ``with``; bitwise as before afterwards, also after an error.

        Weights of 16 bits would swallow a small change, so there the change acts beside them: W x + dW x.
        """
        slots = self.slots(model)
        if acts_beside(model, slots):
            with beside(model, projections(slots, self.on(model, slots))):  # type: ignore[arg-type]
                yield
            return
        if is_low(model):
            with shadowed(model, self.in_full(model)):
                yield
            return
        with torch.no_grad(), ExitStack() as stack:
            parameters = dict(model.hf.named_parameters())
            for name in {slot.parameter for slot in slots}:
                stack.callback(_put_back, parameters[name], parameters[name].detach().clone())
            for slot in slots:
                slot.add_(parameters[slot.parameter], self[slot.name].to(parameters[slot.parameter].device))
            with torch.enable_grad() if torch.is_grad_enabled() else torch.no_grad():
                yield

    def in_full(self, model: Model) -> dict[str, Tensor]:
        """By parameter, in its shape and layout; zero where a part of a fused matrix does not change."""
        slots = self.slots(model)
        parameters = dict(model.hf.named_parameters())
        full = {
            name: torch.zeros_like(parameters[name], dtype=wide(model.dtype), requires_grad=False)
            for name in dict.fromkeys(slot.parameter for slot in slots)
        }
        for slot in slots:
            slot.add_(full[slot.parameter], self[slot.name].to(full[slot.parameter].device))
        return full

    def on(self, model: Model, slots: Sequence[Slot]) -> dict[str, Tensor]:
        """Each slot's change, on the device of its layer."""
        where = {slot.name: model.hf.get_parameter(slot.parameter).device for slot in slots}
        return {name: change.to(where[name]) for name, change in self._changes.items()}

    def slots(self, model: Model) -> list[Slot]:
        """What of the model it changes; an error where the model has no such weight, or of another shape."""
        known = {slot.name: slot for slot in slots_of(model)}
        slots = []
        for name, change in self._changes.items():
            if name not in known:
                raise InputError(f"the delta changes '{name}', which {model.name} has not: {suggest(name, known)}")
            shape = tuple(known[name].get(model.hf.get_parameter(known[name].parameter)).shape)
            if tuple(change.shape) != shape:
                raise InputError(f"the delta's '{name}' is {tuple(change.shape)}; {model.name} has {shape} there")
            slots.append(known[name])
        return slots


def acts_beside(model: Model, slots: Sequence[Slot]) -> bool:
    """Whether changes act beside the weights: on a GPU, where that saves a copy of them, at 16 bits, and where sums
    are taken in another order to see what rounding does, that of W + dW among it.
    """
    wanted = is_low(model) or model.device.type == "cuda" or model.in_other_order
    return wanted and all(isinstance(slot, Part) for slot in slots)


def _put_back(parameter: Tensor, original: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(original)
