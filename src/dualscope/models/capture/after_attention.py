"""The residual stream of a block between its attention and its MLP."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn


class AfterAttention:
    """The residual stream of a block between its attention and what follows.

    What attention adds is its output or, where a block's child (a post-norm, a dropout) is fed exactly that
    tensor, what comes out of there: a norm that is fed the sum with the residual stream sees another tensor.
    """

    def __init__(self, block: nn.Module, attention: nn.Module, stack: ExitStack) -> None:
        granite = getattr(block, "residual_multiplier", 1.0)
        self.scale = float(getattr(block, "residual_scale", granite))  # MiniCPM3
        # Bloom's attention is given the residual stream and adds it itself.
        self.adds_residual = "residual" in inspect.signature(type(attention).forward).parameters
        self.added: Tensor | None = None
        stack.callback(attention.register_forward_hook(self._from_attention).remove)
        if not self.adds_residual:
            for child in block.children():
                stack.callback(child.register_forward_hook(self._from_child).remove)

    def _from_attention(self, _: nn.Module, __: Any, output: Any) -> None:
        self.added = first_of(output)

    def _from_child(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and args[0] is self.added and isinstance(output, Tensor):
            self.added = output

    def residual(self, inputs: Tensor) -> Tensor:
        added = self.added
        assert added is not None, "a block ran without its attention"
        self.added = None
        return added if self.adds_residual else inputs.to(added.device) + self.scale * added


def first_of(output: Any) -> Tensor:
    """A block's or attention's hidden states, which may come in a tuple."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
