"""Behind the last layer's keys and values, only the rows that are read.

Of a query the row that predicts its label is asked for, and of a context that is encoded nothing but keys and values.
So in the last layer attention is computed for that row alone, and the MLP sees no other: what stands in the other rows
from there on is not a number of the model's, and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.models.attention_kinds.install import kind_in
from dualscope.models.capture.session import RowIndex, Session, some

if TYPE_CHECKING:
    from dualscope.models.model import Model


def final_rows(model: Model, session: Session) -> RowIndex | None:
    """The one row of each sequence that the last layer is asked for; None: all.

    Where the model is intervened upon, hooks look for their rows among all.
    """
    intervened = bool(model.interventions) and session.acts is not None
    return None if intervened or kind_in(model.attentions[-1]) is not None else session.final


Attended = tuple[Tensor, Tensor, Tensor, Tensor | None]  # queries, keys, values, transformers' mask


def narrowed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rows: RowIndex
) -> tuple[Attended, Tensor | None]:
    """Queries of the chosen row, [batch, heads, 1, dim], with the keys, values and mask that it sees; and which keys
    come after it, [batch, keys], where that differs from one sequence to another.
    """
    asked = some(query.transpose(1, 2), rows).transpose(1, 2)
    if isinstance(rows, int):
        seen = slice(None, rows + 1)
        mask = mask if mask is None else mask[..., rows : rows + 1, seen]
        return (asked, key[:, :, seen], value[:, :, seen], mask), None
    assert mask is None, "lengths are mixed where attention is plainly causal"
    places = torch.arange(key.shape[-2], device=query.device)
    return (asked, key, value, None), places > rows.to(query.device)[:, None]


def widened(values: Tensor, rows: RowIndex, length: int) -> Tensor:
    """[batch, 1, ...] in its row among ``length``: [batch, length, ...], zeros elsewhere.

    >>> widened(torch.ones(2, 1, 1), torch.tensor([0, 2]), 3).squeeze(-1).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    whole = values.new_zeros(len(values), length, *values.shape[2:])
    if isinstance(rows, int):
        whole[:, rows] = values[:, 0]
    else:
        whole[torch.arange(len(values), device=values.device), rows.to(values.device)] = values[:, 0]
    return whole


def narrow_mlp(model: Model, rows: RowIndex, stack: ExitStack) -> None:
    """Until the stack closes, what follows the attention in the last block sees the chosen rows alone."""
    for module in _position_wise(model):
        narrow = _Narrow(rows)
        stack.callback(module.register_forward_pre_hook(narrow.before).remove)
        stack.callback(module.register_forward_hook(narrow.after).remove)


def _position_wise(model: Model) -> Iterator[nn.Module]:
    """The last block's children that hold linear layers and no attention: MLPs, which treat every row by itself.

    Not a mixture of experts, which sorts rows, and not one that other hooks watch: they expect all rows.
    """
    if model.has_experts:
        return
    attention = model.attentions[-1]
    for child in model.blocks[-1].children():
        modules = list(child.modules())
        composed = len(modules) > 1 and any(p.ndim == 2 for p in child.parameters())
        watched = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
        if composed and attention not in modules and not watched:
            yield child


class _Narrow:
    """Hooks around a module: its inputs are cut to the chosen rows, and its output is put back among all."""

    def __init__(self, rows: RowIndex) -> None:
        self.rows, self.length = rows, 0

    def before(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        first = args[0] if args else None
        self.length = first.shape[1] if isinstance(first, Tensor) and first.ndim == 3 else 0
        if not self.length:  # it flattens batch and rows before: it sees all
            return None
        shape = args[0].shape[:2]
        return tuple(
            some(arg, self.rows) if isinstance(arg, Tensor) and arg.shape[:2] == shape else arg for arg in args
        )

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        return widened(output, self.rows, self.length) if self.length else None
