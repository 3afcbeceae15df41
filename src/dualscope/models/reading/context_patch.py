"""The context as a change of weights, exactly (Dherin et al. 2025): an identity of every transformer block.

For one query, layer by layer from below: m and m_c are the residual stream after attention without and with the context
(the layers below patched already), u and u_c what the MLP is fed. With dW = W_in (u_c - u) u^T / |u|^2 added to the
MLP's input projection, and m_c - m to what the block gives, the model without the context computes what it computes
with it. This holds for any weights, so it says that reading is right, and nothing about learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.architecture.mlp import Mlp, mlps_of
from dualscope.models.capture.block_hooks import AfterAttention, first_of, put, rows_of
from dualscope.models.loading.adapter import matrix

if TYPE_CHECKING:
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model
    from dualscope.models.reading.prefix import Prefix
    from dualscope.tasks.lesson import Lesson


NotedAt = tuple[str, int | None, int]  # query, the class whose label is read (None: the prompt), layer


@dataclass(frozen=True)
class Inside:
    """What a block holds at the rows of one query: the MLP's input, and what its output is added to."""

    fed: Tensor  # u
    carried: Tensor  # m


@dataclass(frozen=True)
class InsideNotes:
    """Notes `Inside` of every query, in all layers or in one."""

    mlps: list[Mlp]
    only: int | None = None
    found: dict[NotedAt, Inside] = field(default_factory=dict)

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if self.only not in (None, layer):
            return
        middle = Middle(model, self.mlps[layer], layer, stack)

        def note(_: nn.Module, __: Any, _output: Any) -> None:
            assert session.acts is not None
            fed, carried = (rows_of(t, session.acts) for t in middle.inside())
            for i, query in enumerate(session.query_ids):
                self.found[query, session.answer, layer] = Inside(fed[i], carried[i])

        stack.callback(model.blocks[layer].register_forward_hook(note).remove)


class Middle:
    """The input of a block's MLP and the stream that its output is added to, as the block runs."""

    def __init__(self, model: Model, mlp: Mlp, layer: int, stack: ExitStack) -> None:
        block = model.blocks[layer]
        self.mlp = mlp
        self.after = AfterAttention(block, model.attentions[layer], stack)
        self.inputs: Tensor | None = None
        self.fed: Tensor | None = None
        stack.callback(block.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
        first = next(iter(mlp.inputs.values()))
        stack.callback(first.register_forward_pre_hook(self._feed).remove)

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.inputs = args[0] if args else kwargs["hidden_states"]

    def _feed(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert self.inputs is not None
        self.fed = args[0].view(self.inputs.shape)  # OPT makes one row of all sequences

    def inside(self) -> tuple[Tensor, Tensor]:
        """u and m of the whole batch, once the block has run."""
        assert self.inputs is not None
        assert self.fed is not None
        carried = self.after.residual(self.inputs)
        return self.fed, self.fed if self.mlp.normed else carried


@dataclass(frozen=True)
class ContextPatch:
    """For every query a change of weights and biases of its own, made as the model runs without the context."""

    mlps: list[Mlp]
    with_context: dict[NotedAt, Inside]
    without: dict[NotedAt, Inside] = field(default_factory=dict)  # as the patched model runs

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return model.intervened(self)

    def randomised(self, seed: int, draw: int) -> ContextPatch:
        raise InputError("'context-patch' is an identity, of any model: a random one in its place shows nothing")

    def factors(self, queries: Sequence[str]) -> list[dict[str, tuple[Tensor, Tensor]]]:
        """By layer and weight, once the patched model has read these queries: dW = left right^T of each query, as
        [queries, out] and [queries, in].
        """
        found = []
        for layer, mlp in enumerate(self.mlps):
            places = [(query, None, layer) for query in queries]
            u = torch.stack([self.without[place].fed for place in places])
            change = torch.stack([self.with_context[place].fed for place in places]) - u
            right = u / u.square().sum(-1, keepdim=True)
            found.append({name: (change @ matrix(module).T, right) for name, module in mlp.inputs.items()})
        return found

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        mlp, block = self.mlps[layer], model.blocks[layer]
        middle = Middle(model, mlp, layer, stack)

        def there(what: str) -> Tensor:
            places = [(query, session.answer, layer) for query in session.query_ids]
            return torch.stack([getattr(self.with_context[place], what) for place in places])

        def on_input(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            assert session.acts is not None
            batch = len(session.query_ids)
            u = rows_of(args[0].view(batch, -1, args[0].shape[-1]), session.acts)
            left = (there("fed") - u) @ matrix(module).T  # dW = left right^T
            right = u / u.square().sum(-1, keepdim=True)
            add = left * (right * u).sum(-1, keepdim=True)
            whole = output.view(batch, -1, output.shape[-1])
            return put(whole, session.acts, lambda rows: rows + add).view(output.shape)

        def on_output(_module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            batch = len(session.query_ids)
            whole = output.view(batch, -1, output.shape[-1])
            return put(whole, session.acts, lambda rows: rows + self._vector(session, layer, middle, there)).view(
                output.shape
            )

        def on_block(_: nn.Module, __: Any, output: Any) -> Any:
            hidden = first_of(output)
            changed = put(hidden, session.acts, lambda rows: rows + self._vector(session, layer, middle, there))
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        for module in mlp.inputs.values():
            stack.callback(module.register_forward_hook(on_input).remove)
        if mlp.normed:
            stack.callback(mlp.output.register_forward_hook(on_output).remove)
        else:
            stack.callback(block.register_forward_hook(on_block).remove)

    def _vector(self, session: Session, layer: int, middle: Middle, there: Any) -> Tensor:
        assert session.acts is not None
        fed, carried = (rows_of(t, session.acts) for t in middle.inside())
        for i, query in enumerate(session.query_ids):
            self.without[query, session.answer, layer] = Inside(fed[i], carried[i])
        with_context: Tensor = there("carried")
        return with_context - carried


def patch_of(model: Model, lesson: Lesson, prefix: Prefix) -> ContextPatch:
    """What the context does to each query of a lesson, as changes of weights."""
    watch = InsideNotes(mlps_of(model))
    with model.intervened(watch):
        model.read(lesson, prefix)
    return ContextPatch(watch.mlps, watch.found)
