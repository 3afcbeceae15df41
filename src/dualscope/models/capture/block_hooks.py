"""Changes of what a model computes while it reads: of a block's output, or of what its heads give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from dualscope.models.architecture.parts import output_projection
from dualscope.models.capture.session import RowIndex, Session, at

if TYPE_CHECKING:
    from dualscope.models.model import Model


class ActivationEdit(Protocol):
    """Something that acts at the rows of `Session.acts`: where the label is predicted, and on a label's own tokens."""

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        """Put hooks into one layer, to be taken out when the stack closes; none where it leaves the layer alone."""
        ...


Edit = Callable[[Tensor, Session], Tensor]
"""From what stands at the read row, [batch, width], to what is put in its place."""


@dataclass(frozen=True)
class OnResidual:
    """The residual stream after a block, at the read row of every query (not on a label's own tokens)."""

    layer: int
    edit: Edit

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if layer != self.layer or session.answer is not None:
            return

        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            changed = put(hidden, session.acts, lambda rows: self.edit(rows, session))
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        stack.callback(model.blocks[layer].register_forward_hook(hook).remove)


@dataclass(frozen=True)
class OnHeads:
    """What the heads of a layer hand to the output projection at the read row: [batch, heads, head_dim]."""

    layer: int
    edit: Edit

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if layer != self.layer or session.answer is not None:
            return

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            heads = model.n_heads

            def edited(rows: Tensor) -> Tensor:
                return self.edit(rows.unflatten(-1, (heads, -1)), session).flatten(-2)

            return put(args[0], session.acts, edited), *args[1:]

        stack.callback(output_projection(model, layer).register_forward_pre_hook(hook).remove)


def rows_of(values: Tensor, rows: RowIndex | slice) -> Tensor:
    """[batch, rows, ...] -> [batch, ...], or [batch, several rows, ...] for a slice."""
    return values[:, rows] if isinstance(rows, slice) else at(values, rows)


def put(values: Tensor, rows: RowIndex | slice | None, edit: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of [batch, rows, ...] with some rows edited.

    >>> put(torch.zeros(1, 3, 1), 1, lambda row: row + 5).flatten().tolist()
    [0.0, 5.0, 0.0]
    """
    assert rows is not None
    changed = values.clone()
    new = edit(rows_of(values, rows)).to(values.dtype)
    if isinstance(rows, Tensor):
        changed[torch.arange(len(rows), device=values.device), rows.to(values.device)] = new
    else:
        changed[:, rows] = new
    return changed


# The residual stream of a block between its attention and its MLP.


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
