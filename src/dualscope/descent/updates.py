"""Changes that act beside the weights: W x + dW x.

The weights are never touched, so there is nothing to keep a copy of and nothing to put back; and 16-bit weights, which
would swallow a small change, do not have to hold it. Each change stays on the device of its layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from dualscope.core.errors import InputError
from dualscope.descent.parameters import is_low

if TYPE_CHECKING:
    from dualscope.models.architecture.parts import Part
    from dualscope.models.model import Model

Active = Callable[[], bool]


def always() -> bool:
    return True


class Projection:
    """The changes of one projection of keys and values, stacked so that one product serves both.

    ``parts`` are of one module; ``changes`` has [out, in] or [out] for each of their names. With ``watch`` the
    projection keeps what it was given and what it gave while gradients are computed.
    """

    def __init__(self, parts: Sequence[Part], changes: Mapping[str, Tensor], watch: bool = False) -> None:
        self.path = parts[0].parameter.rpartition(".")[0]
        self.parts, self.changes, self.watch = list(parts), changes, watch
        self.layer = parts[0].layer
        # The last input and output, where gradients were computed.
        self.seen: tuple[Tensor, Tensor] | None = None
        self._weights = [part for part in parts if part.kind == "weight"]
        self._biases = [part for part in parts if part.kind == "bias"]

    def weight(self, dtype: torch.dtype) -> Tensor:
        """Of all roles, one below the other: [out of all, in]."""
        pieces = [self.changes[part.name].to(dtype) for part in self._weights]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    @torch.no_grad()
    def add_(self, output: Tensor, x: Tensor) -> None:
        """Add what the change gives for ``x`` to the module's output."""
        if self._weights:
            weight = self.weight(x.dtype)
            if (whole := self._slice(self._weights)) is not None:
                rows = output.view(-1, output.shape[-1])[:, whole]
                rows.addmm_(x.reshape(-1, x.shape[-1]), weight.T)
            else:
                added = (x @ weight.T).split([len(self.changes[part.name]) for part in self._weights], -1)
                for part, share in zip(self._weights, added, strict=True):
                    view = part.view_output(output)
                    view += share.view(view.shape)
        for part in self._biases:
            view = part.view_output(output)
            view += self.changes[part.name].to(x.dtype).view(view.shape[-1 if part.rows is None else -2 :])

    def backward(self, errors: Tensor) -> Tensor:
        """What errors of the output mean for the input, through the change alone."""
        return torch.cat([_share(part, errors) for part in self._weights], -1) @ self.weight(errors.dtype)

    def share(self, part: Part, errors: Tensor) -> Tensor:
        """Errors of the output that are a part's: [tokens, out]."""
        return _share(part, errors).flatten(0, -2)

    def _slice(self, parts: Sequence[Part]) -> slice | None:
        """Where the parts' outputs stand, if that is one piece of the module's output."""
        rows = [part.rows for part in parts if part.rows is not None]
        if not rows:
            return slice(None) if len(parts) == 1 else None
        adjacent = all(one.last == other.first for one, other in pairwise(rows))
        return slice(rows[0].first, rows[-1].last) if adjacent and rows[0].blocks == 1 else None

    def hook(self, active: Active = always) -> Callable[..., Tensor | None]:
        def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if not active():
                return None
            if not torch.is_grad_enabled():
                self.add_(output, args[0])
                return output
            output = _Beside.apply(output, args[0], self)  # type: ignore[no-untyped-call]
            if self.watch:
                # In the lowest layer that learns nothing before has a gradient; the graph begins here.
                output = output if output.requires_grad else output.requires_grad_()
                self.seen = (args[0].detach(), output)
            return output

        return hook


def _share(part: Part, errors: Tensor) -> Tensor:
    view = part.view_output(errors)
    return view if part.rows is None else view.flatten(-2)


class _Beside(torch.autograd.Function):
    """A projection's output with its change added; the change itself is a constant here.

    Its gradient is errors^T inputs, which is cheaper left as these two (see ``gradients.Outer``). Its 16-bit copy is
    made anew in the backward pass: copies of all layers at once would be half as large as the changes.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, projection: Projection) -> Tensor:
        ctx.projection = projection
        output = output.clone()
        projection.add_(output, x)
        return output

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor, Tensor | None, None]:
        through = ctx.projection.backward(errors[0]) if ctx.needs_input_grad[1] else None
        return errors[0], through, None


def projections(parts: Sequence[Part], changes: Mapping[str, Tensor], watch: bool = False) -> list[Projection]:
    """Parts and their changes by module."""
    by_module: dict[str, list[Part]] = {}
    for part in parts:
        by_module.setdefault(part.parameter.rpartition(".")[0], []).append(part)
    return [Projection(own, changes, watch) for own in by_module.values()]


@contextmanager
def beside(model: Model, found: Sequence[Projection], active: Active = always) -> Iterator[None]:
    """Inside ``with`` the projections give what they would with their changes added, while ``active`` says so."""
    with ExitStack() as stack:
        for projection in found:
            module = model.hf.get_submodule(projection.path)
            stack.enter_context(module.register_forward_hook(projection.hook(active)))
        yield


@contextmanager
def shadowed(model: Model, changes: Mapping[str, Tensor]) -> Iterator[None]:
    """Add ``changes`` (parameter name -> tensor of its shape) without touching the weights, inside ``with``.

    Slower than ``beside``, for any parameter of a linear module: the change may require a gradient, and may carry a
    forward-mode tangent.
    """
    by_module: dict[str, dict[str, Tensor]] = {}
    for name, change in changes.items():
        path, _, leaf = name.rpartition(".")
        by_module.setdefault(path, {})[leaf] = change
    with ExitStack() as stack:
        for path, own in by_module.items():
            module = model.hf.get_submodule(path)
            _check_linear(path, module)
            # First among the layer's hooks: all others see what it gives with the change.
            stack.enter_context(module.register_forward_hook(_added(own), prepend=True))
        yield


@contextmanager
def even_tangents(model: Model) -> Iterator[None]:
    """Inside ``with`` a forward-mode tangent has the type of its tensor.

    torch's derivative of a layer norm has the type of its statistics, which on a GPU are float32 at 16 bits: the next
    product would refuse it.
    """

    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Tensor | None:
        if not isinstance(output, Tensor):
            return None
        primal, tangent = forward_ad.unpack_dual(output)
        if tangent is None or tangent.dtype == primal.dtype:
            return None
        even: Tensor = forward_ad.make_dual(primal, tangent.to(primal.dtype))
        return even

    with ExitStack() as stack:
        for module in model.hf.modules() if is_low(model) else ():
            if not any(module.children()):
                stack.enter_context(module.register_forward_hook(hook))
        yield


def _added(own: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    """A forward hook that adds what a module would give with ``own`` in the place of its weights, and nothing else.

    That is the change of its output, because a projection is linear in its weight and bias together. Whatever hangs on
    the module beside its weights (an active adapter, the nonlinear part of an augmented attention) is in the output
    already, so the module itself is not called again.
    """
    weight, bias = own.get("weight"), own.get("bias")

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if weight is None:
            assert bias is not None, "a change is of a weight or a bias"
            return (output.to(bias.dtype) + bias).to(output.dtype)
        rows = weight if isinstance(module, nn.Linear) else weight.T  # GPT-2's Conv1D keeps [in, out]
        # Devices differ where layers are split over several: what hands inputs on works inside of the layer.
        change = nn.functional.linear(args[0].to(weight.device, weight.dtype), rows, bias)
        return (output.to(weight.dtype) + change).to(output.dtype)

    return hook


def _check_linear(path: str, module: nn.Module) -> None:
    # Linear (Falcon's is a kind of it) and GPT-2's Conv1D; anything else may not be linear in its parameters.
    if not isinstance(module, nn.Linear) and type(module).__name__ != "Conv1D":
        raise InputError(
            f"'{path}' is a {type(module).__name__}: a change beside the weights needs a linear layer; "
            "load the model with --dtype float32"
        )
