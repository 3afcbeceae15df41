"""Each block's own gradient from its own loss, with the graph of one block in memory at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from dualscope.models.model import Model

Visit = Callable[
    [int, Tensor], bool
]  # layer, what is read out [tokens, width] -> whether the block's weights moved


@contextmanager
def visiting(model: Model, readout: Literal["block", "attention"], visit: Visit) -> Iterator[None]:
    """While the model runs inside ``with``, ``visit`` is called after every block with what the block says.

    Every block starts a graph of its own, because the output of the one before is handed on detached. Where
    ``visit`` moved the block's weights, the block is run again, and its new output is what goes on.
    """
    with ExitStack() as stack:
        for layer, (block, attention) in enumerate(zip(model.blocks, model.attentions, strict=True)):
            middle = _Middle(model, block, attention, stack) if readout == "attention" else None
            hook = _after(layer, middle, visit)
            stack.callback(block.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def _after(layer: int, middle: _Middle | None, visit: Visit) -> Callable[..., Any]:
    def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        hidden = _first(output)
        said = hidden if middle is None else middle.after_attention(_input(args, kwargs))
        if visit(layer, said[0]):
            with torch.no_grad():
                output = block.forward(*args, **kwargs)  # not through this hook again
        return _map_first(output, torch.Tensor.detach)

    return hook


class _Middle:
    """The residual stream of a block between its attention and what follows.

    What attention adds is its output or, where a block's child (a post-norm, a dropout) is fed exactly that
    tensor, what comes out of there: a norm that is fed the sum with the residual stream sees another tensor.
    """

    def __init__(self, model: Model, block: nn.Module, attention: nn.Module, stack: ExitStack) -> None:
        self.scale = float(getattr(block, "residual_multiplier", 1.0))  # Granite
        # Bloom's attention is given the residual stream and adds it itself.
        self.adds_residual = "residual" in inspect.signature(type(attention).forward).parameters
        self.added: Tensor | None = None
        stack.callback(attention.register_forward_hook(self._from_attention).remove)
        if not self.adds_residual:
            for child in block.children():
                stack.callback(child.register_forward_hook(self._from_child).remove)

    def _from_attention(self, _: nn.Module, __: Any, output: Any) -> None:
        self.added = _first(output)

    def _from_child(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and args[0] is self.added and isinstance(output, Tensor):
            self.added = output

    def after_attention(self, inputs: Tensor) -> Tensor:
        added = self.added
        assert added is not None, "a block ran without its attention"
        self.added = None
        return added if self.adds_residual else inputs.to(added.device) + self.scale * added


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = args[0] if args else kwargs["hidden_states"]
    return found


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _map_first(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return (function(output[0]), *output[1:]) if isinstance(output, tuple) else function(output)
