"""Each block's own gradient from its own loss, with the graph of one block in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from dualscope.models.capture.after_attention import AfterAttention, first_of

if TYPE_CHECKING:
    from dualscope.models.model import Model

# Layer, what is read out [sequences, tokens, width] -> whether the block's weights moved.
Visit = Callable[[int, Tensor], bool]


@contextmanager
def visiting(model: Model, readout: Literal["block", "attention"], visit: Visit) -> Iterator[None]:
    """While the model runs inside ``with``, ``visit`` is called after every block with what the block says.

    Every block starts a graph of its own, because the output of the one before is handed on detached. Where
    ``visit`` moved the block's weights, the block is run again, and its new output is what goes on.
    """
    with ExitStack() as stack:
        for layer, (block, attention) in enumerate(zip(model.blocks, model.attentions, strict=True)):
            middle = AfterAttention(block, attention, stack) if readout == "attention" else None
            hook = _after(layer, middle, visit)
            stack.callback(block.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def _after(layer: int, middle: AfterAttention | None, visit: Visit) -> Callable[..., Any]:
    def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        hidden = first_of(output)
        said = hidden if middle is None else middle.residual(_input(args, kwargs))
        if visit(layer, said):
            with torch.no_grad():
                output = block.forward(*args, **kwargs)  # not through this hook again
        return _map_first(output, torch.Tensor.detach)

    return hook


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = args[0] if args else kwargs["hidden_states"]
    return found


def _map_first(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return (function(output[0]), *output[1:]) if isinstance(output, tuple) else function(output)
