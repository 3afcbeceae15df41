"""All weights of a model, of every draw: as many models in one batch, each module's product a batched one.

Nothing is shared here but the order of the work, so memory holds as many models as there are draws, their changes and
their gradients. Only modules are known whose forward pass we can say for several weights at once: linear layers,
embeddings, layer norms and RMS norms; a model with any other goes one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dualscope.descent.changes_of_draws import DrawsBeside
from dualscope.descent.parameters import Gradient

if TYPE_CHECKING:
    from dualscope.models.model import Model


def is_known_whole(model: Model) -> bool:
    """Whether every weight is in a module that can be computed with several weights at once."""
    return all(_forward_of(module) is not None for module in _owners(model))


@dataclass(frozen=True)
class WholeWeightsOfDraws:
    """Every parameter of every draw by name, [draws, *its shape]."""

    weights: Mapping[str, Tensor]
    draws: int

    @contextmanager
    def applied(self, model: Model) -> Iterator[None]:
        """Inside, a batch of as many sequences of every draw is computed by as many models."""
        names = {id(parameter): name for name, parameter in model.hf.named_parameters()}
        with ExitStack() as stack:
            for module in _owners(model):
                own = {leaf: self.weights[names[id(p)]] for leaf, p in module.named_parameters(recurse=False)}
                forward = _forward_of(module)
                assert forward is not None, "a module that is not known"
                module.forward = partial(forward, module, own)
                stack.callback(module.__dict__.pop, "forward")
            yield


class WholeDraws(DrawsBeside):
    """All weights of every draw, while they move: always the originals plus a change that is kept apart."""

    def __enter__(self) -> WholeDraws:
        with ExitStack() as stack:
            stack.enter_context(self.model.running())
            for name, parameter in self.model.hf.named_parameters():
                stack.callback(parameter.requires_grad_, parameter.requires_grad)
                parameter.requires_grad_(False)
                self._originals[name] = parameter.detach()
                shape = (self.draws, *parameter.shape)
                self.leaves[name] = parameter.detach().expand(shape).clone().requires_grad_()
                self.changes[name] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
            stack.enter_context(self.of_draws().applied(self.model))
            self._stack = stack.pop_all()
        return self

    def gradient(
        self,
        loss: Tensor,
        layer: int | None = None,
        also: Sequence[Tensor] = (),
        seed: Tensor | None = None,
        keeps_graph: bool = False,
    ) -> tuple[Gradient, Sequence[Tensor]]:
        assert layer is None, "all weights learn from one loss"
        found = self._grad(loss, [*self.leaves.values(), *also], seed, keeps_graph)
        return dict(zip(self.leaves, found, strict=False)), found[len(self.leaves) :]

    @torch.no_grad()
    def move(self, direction: Gradient, size: float = 1.0) -> None:
        self._change(direction, size)
        self._add_up()

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self._add_up()

    def _add_up(self) -> None:
        for name, leaf in self.leaves.items():
            torch.add(self._originals[name], self.changes[name], out=leaf.detach())

    def of_draws(self) -> WholeWeightsOfDraws:
        return WholeWeightsOfDraws(self.leaves, self.draws)


Forward = Callable[..., Tensor]


def _owners(model: Model) -> Iterator[nn.Module]:
    """Modules with weights of their own."""
    for module in model.hf.modules():
        if next(module.parameters(recurse=False), None) is not None:
            yield module


def _forward_of(module: nn.Module) -> Forward | None:
    kind = type(module)
    if kind is nn.Embedding:
        return _embedding if module.max_norm is None and not module.scale_grad_by_freq else None
    if kind is nn.LayerNorm:
        return _layer_norm
    if kind.__name__ in ("Linear", "FalconLinear", "Conv1D"):
        return _linear
    return _rms_norm if kind.__name__.endswith("RMSNorm") else None


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    """[sequences of all draws, ..., width] -> [draws, tokens, width]."""
    return x.reshape(len(weight), -1, x.shape[-1])


def _linear(module: nn.Module, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    weight = own["weight"] if type(module).__name__ == "Conv1D" else own["weight"].mT  # [draws, in, out]
    rows = _rows(x, weight)
    bias = own.get("bias")
    found = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias[:, None], rows, weight)
    return found.view(*x.shape[:-1], -1)


def _embedding(module: Any, own: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    weight = own["weight"]
    draws, size = weight.shape[:2]
    first = torch.arange(draws, device=ids.device) * size
    places = ids.reshape(draws, -1) + first[:, None]
    found = F.embedding(places, weight.flatten(0, 1)).view(*ids.shape, -1)
    if module.padding_idx is not None:  # its vector does not learn
        found = torch.where((ids == module.padding_idx)[..., None], found.detach(), found)
    return found


def _layer_norm(module: Any, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    rows = F.layer_norm(_rows(x, own["weight"]), module.normalized_shape, None, None, module.eps)
    found = rows * own["weight"][:, None]
    if "bias" in own:
        found = found + own["bias"][:, None]
    return found.view(x.shape)


def _rms_norm(module: nn.Module, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Its own formula, which treats every number of a row alike, with one weight for each draw's rows."""
    stand_in = copy.copy(module)
    stand_in.__dict__ = {name: value for name, value in module.__dict__.items() if name != "forward"}
    stand_in._parameters = {}
    for name, weight in own.items():
        setattr(stand_in, name, weight[:, None])
    found: Tensor = type(module).forward(stand_in, _rows(x, own["weight"]))
    return found.view(x.shape)
