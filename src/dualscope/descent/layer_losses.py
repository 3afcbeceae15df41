"""What each block says while the model runs, for losses of its own; as a rule the graph of one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from dualscope.models.capture.block_hooks import AfterAttention, first_of

if TYPE_CHECKING:
    from dualscope.models.model import Model

# Layer, what is read out [sequences, tokens, width] -> whether the block's weights moved.
Visit = Callable[[int, Tensor], bool]


SaidBy = Literal["block", "attention"]


@contextmanager
def visiting(model: Model, said_by: SaidBy, visit: Visit, one_graph: bool = False) -> Iterator[None]:
    """While the model runs inside ``with``, ``visit`` is called after every block with what the block says.

    Every block starts a graph of its own, because the output of the one before is handed on detached; with
    ``one_graph`` all blocks are in one. Where ``visit`` moved the block's weights, the block is run again, and its new
    output is what goes on.
    """
    with ExitStack() as stack:
        for layer, (block, attention) in enumerate(zip(model.blocks, model.attentions, strict=True)):
            middle = AfterAttention(block, attention, stack) if said_by == "attention" else None
            hook = _after(layer, middle, visit, one_graph)
            stack.callback(block.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def _after(layer: int, middle: AfterAttention | None, visit: Visit, one_graph: bool) -> Callable[..., Any]:
    def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        hidden = first_of(output)
        said = hidden if middle is None else middle.residual(_input(args, kwargs))
        if visit(layer, said):
            with torch.no_grad():
                output = block.forward(*args, **kwargs)  # not through this hook again
        return None if one_graph else _map_first(output, torch.Tensor.detach)

    return hook


@dataclass(frozen=True)
class BlockCall:
    """What a block was called with: it can be called again, by itself."""

    layer: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def hidden(self) -> Tensor:
        return _input(self.args, self.kwargs)

    def with_hidden(self, hidden: Tensor) -> BlockCall:
        """The same call of what another block hands on."""
        if self.args:
            return replace(self, args=(hidden, *self.args[1:]))
        return replace(self, kwargs={**self.kwargs, "hidden_states": hidden})

    def run(self, model: Model) -> Tensor:
        """The block's output, [sequences, tokens, width]."""
        return first_of(model.blocks[self.layer].forward(*self.args, **self.kwargs))

    def said(self, model: Model, middle: AfterAttention | None) -> Tensor:
        """What the block says: its output, or the stream in its middle."""
        output = self.run(model)
        return output if middle is None else middle.residual(self.hidden)


@torch.no_grad()
def block_calls(model: Model, tokens: Tensor) -> list[BlockCall]:
    """What every block is called with while the model runs over some tokens."""
    found: list[BlockCall] = []
    with ExitStack() as stack:
        for layer, block in enumerate(model.blocks):

            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], layer: int = layer) -> None:
                found.append(BlockCall(layer, args, kwargs))

            stack.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
        model.forward(tokens, keep=1)
    return found


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = args[0] if args else kwargs["hidden_states"]
    return found


def _map_first(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return (function(output[0]), *output[1:]) if isinstance(output, tuple) else function(output)
