"""Where a block keeps its MLP: found by watching a block run, so that no table is needed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.architecture.parts import output_projection
from dualscope.models.capture.block_hooks import first_of
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session

if TYPE_CHECKING:
    from dualscope.models.model import Model


@dataclass(frozen=True)
class Mlp:
    """The projections of one block's MLP. A gated one has two input projections, or one that holds both."""

    inputs: dict[str, nn.Module]  # by the name of the weight among the model's parameters
    output: nn.Module
    normed: bool  # a norm takes the sum of the MLP and the residual stream (OPT-350m's order)
    parallel: bool  # it does not see what the attention of its own block did


@dataclass
class _Watched:
    """What one block was seen to do."""

    linears: list[tuple[str, nn.Module, Tensor]] = field(default_factory=list)
    """In order, with what they were fed."""
    norms: list[Tensor] = field(default_factory=list)  # what norms gave
    output: Tensor | None = None


def is_linear(module: nn.Module) -> bool:
    """Linear, GPT-2's Conv1D, or what holds one weight matrix in their place."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)


def mlps_of(model: Model) -> list[Mlp]:
    """One a block. A block of another build (a mixture of experts) is refused in words."""
    seen, without = _watch(model, silent=False), _watch(model, silent=True)
    first, same = seen[0].linears, without[0].linears  # further up, silence below has changed the inputs too
    parallel = bool(first and torch.equal(first[0][2], same[0][2]))
    return [_mlp(model, layer, seen[layer], parallel) for layer in range(model.n_layers)]


def _mlp(model: Model, layer: int, seen: _Watched, parallel: bool) -> Mlp:
    block, attention = model.blocks[layer], model.attentions[layer]
    fed = seen.linears[0][2] if seen.linears else None
    inputs = {name: module for name, module, tensor in seen.linears if tensor is fed}
    outputs = [module for _, module, tensor in seen.linears if tensor is not fed]
    known = {id(p) for module in (attention, *inputs.values(), *outputs) for p in module.parameters()}
    foreign = [n for n, p in block.named_parameters() if p.ndim > 1 and id(p) not in known]
    if len(outputs) != 1 or not 1 <= len(inputs) <= 2 or foreign:
        raise InputError(
            f"{model.name}: layer {layer} has no MLP of one or two input projections and one output projection"
            + (f" ('{foreign[0]}' is another weight)" if foreign else "")
            + "; a change of its input projection, the same for every token, is not defined for a mixture of experts"
        )
    normed = any(out is seen.output for out in seen.norms)
    return Mlp(inputs, outputs[0], normed, parallel)


@torch.no_grad()
def _watch(model: Model, silent: bool) -> list[_Watched]:
    """One pass over two tokens; ``silent``: attention adds nothing, which a parallel MLP does not notice."""
    found = [_Watched() for _ in model.blocks]
    with ExitStack() as stack:
        stack.enter_context(model.running())
        stack.enter_context(capturing(model, Session()))
        for layer, block in enumerate(model.blocks):
            _attach(model, layer, block, found[layer], silent, stack)
        model.forward(torch.zeros(1, 2, dtype=torch.long, device=model.device))
    return found


def _attach(model: Model, layer: int, block: nn.Module, watched: _Watched, silent: bool, stack: ExitStack) -> None:
    inside = set(model.attentions[layer].modules())
    path = f"{model.family.blocks}.{layer}"

    def linear(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
            watched.linears.append((f"{path}.{name}.weight", module, args[0]))

        return hook

    def norm(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            watched.norms.append(output)

    def whole(_: nn.Module, __: Any, output: Any) -> None:
        watched.output = first_of(output)

    for name, module in block.named_modules():
        own = list(module.parameters(recurse=False))
        if module in inside or module is block:
            continue
        if is_linear(module):
            stack.callback(module.register_forward_hook(linear(name)).remove)
        elif own and all(p.ndim == 1 for p in own):
            stack.callback(module.register_forward_hook(norm).remove)
    stack.callback(block.register_forward_hook(whole).remove)
    if silent:
        projection = output_projection(model, layer)
        stack.callback(projection.register_forward_hook(lambda _, __, out: torch.zeros_like(out)).remove)
