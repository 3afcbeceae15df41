"""Changes of key and value weights that differ from draw to draw, beside weights that all draws share: W x + dW_k x.

A batch holds as many sequences of every draw, one draw's behind another's. The product with the shared weights is one
for all of them; the changes add theirs by one batched product. What a draw computes never touches another's rows, so a
draw whose training diverges leaves the others unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from dualscope.descent.parameters import Gradient, Outer, Slot, layer_of, wide
from dualscope.descent.trainable import ProjectionWeights
from dualscope.descent.updates import Projection, beside, even_tangents
from dualscope.models.architecture.parts import Part

if TYPE_CHECKING:
    from dualscope.models.model import Model


class DrawsProjection(Projection):
    """The changes of one projection of keys and values, of every draw: all roles' rows below one another."""

    def __init__(self, parts: Sequence[Part], model: Model, draws: int, watch: bool = False) -> None:
        super().__init__(parts, {}, watch)
        self.draws = draws
        self.outs = [len(self._own(part, model)) for part in self._weights]
        device, dtype = self._own(parts[0], model).device, wide(model.dtype)
        changes: dict[str, Tensor] = {}
        self.weights: Tensor | None = None  # [draws, in, out of all roles]: no product but one needs it transposed
        self.biases: Tensor | None = None  # [draws, out of all roles]
        if self._weights:
            width = self._own(self._weights[0], model).shape[1]
            self.weights = torch.zeros(draws, width, sum(self.outs), dtype=dtype, device=device)
            pieces = self.weights.mT.split(self.outs, 1)
            changes |= {part.name: piece for part, piece in zip(self._weights, pieces, strict=True)}
        if self._biases:
            outs = [len(self._own(part, model)) for part in self._biases]
            self.biases = torch.zeros(draws, sum(outs), dtype=dtype, device=device)
            pieces = self.biases.split(outs, 1)
            changes |= {part.name: piece for part, piece in zip(self._biases, pieces, strict=True)}
        self.changes: Mapping[str, Tensor] = changes

    @staticmethod
    def _own(part: Part, model: Model) -> Tensor:
        return part.get(model.hf.get_parameter(part.parameter).detach())

    def rows(self, values: Tensor) -> Tensor:
        """[sequences of all draws, tokens, ...] -> [draws, tokens of all its sequences, ...]."""
        return values.reshape(self.draws, -1, values.shape[-1])

    def _added(self, dtype: torch.dtype) -> Tensor:
        assert self.weights is not None
        return self.weights.to(dtype)

    @torch.no_grad()
    def add_(self, output: Tensor, x: Tensor) -> None:
        rows = output.view(self.draws, -1, output.shape[-1])
        if self._weights:
            inputs, weight = self.rows(x), self._added(x.dtype)
            if (whole := self._slice(self._weights)) is not None:
                rows[..., whole].baddbmm_(inputs, weight)
            else:
                added = torch.bmm(inputs, weight).split(self.outs, -1)
                for part, share in zip(self._weights, added, strict=True):
                    view = part.view_output(rows)
                    view += share.reshape(view.shape)
        for part in self._biases:
            view = part.view_output(rows)
            change = self.changes[part.name].to(x.dtype)
            view += change.reshape(self.draws, 1, *view.shape[2:])

    def backward(self, errors: Tensor) -> Tensor:
        through = torch.bmm(self.of_weights(errors), self._added(errors.dtype).mT)
        return through.view(*errors.shape[:-1], -1)

    def of_weights(self, errors: Tensor) -> Tensor:
        """Errors of the output that are the changed weights': [draws, tokens, out of all]."""
        return self._pieces(self._weights, errors)

    def of_biases(self, errors: Tensor) -> Tensor:
        """And those that are the changed biases'."""
        return self._pieces(self._biases, errors)

    def _pieces(self, parts: Sequence[Part], errors: Tensor) -> Tensor:
        if (whole := self._slice(parts)) is not None:
            return self.rows(errors)[..., whole]
        return torch.cat([self.share(part, errors) for part in parts], -1)

    def share(self, part: Part, errors: Tensor) -> Tensor:
        return self.rows(super().share(part, errors))


def projections_of_draws(model: Model, parts: Sequence[Part], draws: int, watch: bool = False) -> list[DrawsProjection]:
    """Parts by module, with a change of zero for every draw."""
    by_module: dict[str, list[Part]] = {}
    for part in parts:
        by_module.setdefault(part.parameter.rpartition(".")[0], []).append(part)
    return [DrawsProjection(own, model, draws, watch) for own in by_module.values()]


class DrawsChange(Protocol):
    """What a learner changed on every draw: what a change of one is where it is alone."""

    def applied(self, model: Model) -> AbstractContextManager[None]:
        """Inside ``with`` a batch of as many sequences of every draw is computed by as many changed models."""
        ...


@dataclass(frozen=True)
class ChangesOfDraws:
    """What every draw's training has changed."""

    projections: Sequence[DrawsProjection]
    draws: int

    @contextmanager
    def applied(self, model: Model) -> Iterator[None]:
        """Inside, a batch of as many sequences of every draw is computed by as many changed models."""
        with beside(model, self.projections):
            yield


class DrawsBeside(ProjectionWeights[DrawsProjection]):
    """Key and value parts of every draw, which change beside the weights that all draws share.

    A gradient is named after the module's own parameter, because keys and values of one module move together.
    """

    def __init__(self, model: Model, slots: Sequence[Slot], draws: int, measures: bool = False) -> None:
        super().__init__(model, slots)
        self.draws, self.measures = draws, measures  # whether the norms of steps will be read

    def __enter__(self) -> DrawsBeside:
        with ExitStack() as stack:
            self._freeze(stack)
            parts = [slot for slot in self.slots if isinstance(slot, Part)]
            assert len(parts) == len(self.slots), "draws change keys and values here"
            self.projections = projections_of_draws(self.model, parts, self.draws, watch=True)
            self.changes = {}
            for projection in self.projections:
                for kind, change in (("weight", projection.weights), ("bias", projection.biases)):
                    if change is not None:
                        self.changes[f"{projection.path}.{kind}"] = change
            self._hook(stack)
            self._stack = stack.pop_all()
        return self

    def _hook(self, stack: ExitStack) -> None:
        stack.enter_context(beside(self.model, self.projections))

    def _of_projection(self, projection: DrawsProjection, inputs: Tensor, errors: Tensor) -> Gradient:
        found: Gradient = {}
        if projection.weights is not None:
            # As the weights are kept here: inputs^T errors.
            rows = projection.rows(inputs).to(errors.dtype)
            found[f"{projection.path}.weight"] = Outer(rows, projection.of_weights(errors))
        if projection.biases is not None:
            found[f"{projection.path}.bias"] = Outer(projection.of_biases(errors), None)
        return found

    @torch.no_grad()
    def reset(self) -> None:
        for change in self.changes.values():
            change.zero_()

    @torch.no_grad()
    def norms(self, values: Gradient) -> Tensor:
        """The norm of each layer's share of every draw, [draws, layers]; NaN where no metric asks for it."""
        shape, dtype = (self.draws, self.model.n_layers), wide(self.model.dtype)
        if not self.measures:
            return torch.full(shape, torch.nan, dtype=dtype, device=self.model.device)
        squares = torch.zeros(shape, dtype=dtype, device=self.model.device)
        layers = tuple(layer_of(name) for name in values)
        squares.index_add_(1, self._index(layers), _squares_of_draws(list(values.values())).to(squares.dtype))
        return squares.sqrt()

    def update_norms(self) -> Tensor:
        """How far each layer's slots moved in every draw, relative to their size before, [draws, layers]."""
        if not self.measures:
            return self.norms({})
        before: Gradient = {
            slot.name: slot.get(self.model.hf.get_parameter(slot.parameter).detach()) for slot in self.slots
        }
        return self.norms({**self.changes}) / super().norms(before)

    def of_draws(self) -> DrawsChange:
        """The changes so far; they go on changing with these weights."""
        return ChangesOfDraws(self.projections, self.draws)


class DrawsTangent(DrawsBeside):
    """The same where no weight moves: what the model computes carries its derivative along each draw's change."""

    def _hook(self, stack: ExitStack) -> None:
        pass

    @contextmanager
    def along_change(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(forward_ad.dual_level())
            for projection in self.projections:
                module = self.model.hf.get_submodule(projection.path)
                stack.enter_context(module.register_forward_hook(_carrying(projection), prepend=True))
            stack.enter_context(even_tangents(self.model))
            yield


def _carrying(projection: DrawsProjection) -> Callable[..., Tensor]:
    """A forward hook: the output as it is, its derivative with dW_k x added."""

    def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs = forward_ad.unpack_dual(args[0]).primal.detach()
        primal, tangent = forward_ad.unpack_dual(output)
        added = torch.zeros_like(primal, requires_grad=False)
        projection.add_(added, inputs)
        if torch.is_grad_enabled():
            # In the lowest layer that learns nothing before has a gradient; the graph begins here.
            primal = primal if primal.requires_grad else primal.detach().requires_grad_()
            projection.seen = (inputs, primal)
        found: Tensor = forward_ad.make_dual(primal, added if tangent is None else tangent + added)
        return found

    return hook


def _squares_of_draws(values: Sequence[Tensor | Outer]) -> Tensor:
    """The squared norm of each, [draws, values]."""
    return torch.stack([_square(value) for value in values], 1)


def _square(value: Tensor | Outer) -> Tensor:
    if isinstance(value, Tensor):
        return value.flatten(1).square().sum(1)
    if value.inputs is None:
        return value.errors.sum(1).square().sum(1)
    # |E^T X|^2 = <E E^T, X X^T>; rounding may leave a zero gradient's sum just below zero.
    products = torch.bmm(value.errors, value.errors.mT) * torch.bmm(value.inputs, value.inputs.mT)
    return products.sum((1, 2)).clamp(min=0)


# All weights of a model, of every draw: as many models in one batch, each module's product a batched one. Nothing is
# shared here but the order of the work, so memory holds as many models as there are draws, their changes and their
# gradients. Only modules are known whose forward pass we can say for several weights at once: linear layers,
# embeddings, layer norms and RMS norms; a model with any other goes one by one.


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
            self._freeze(stack)
            for name, parameter in self.model.hf.named_parameters():
                self._originals[name] = parameter.detach()
                shape = (self.draws, *parameter.shape)
                self.leaves[name] = parameter.detach().expand(shape).clone().requires_grad_()
                self.changes[name] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
            stack.enter_context(self.of_draws().applied(self.model))
            self._stack = stack.pop_all()
        return self

    def _graph_tensors(self, layer: int | None) -> list[Tensor]:
        assert layer is None, "all weights learn from one loss"
        return list(self.leaves.values())

    def _by_slot(self, layer: int | None, gradients: Sequence[Tensor]) -> Gradient:
        return dict(zip(self.leaves, gradients, strict=True))

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
