"""What a layer's own change does to its attention, without the drift from the layers below."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.descent.delta import Delta
from dualscope.descent.parameters import wide
from dualscope.descent.updates import beside, projections
from dualscope.models.architecture.parts import Part
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import RowIndex, Session, at
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.memory import halving, tensor_limit
from dualscope.models.reading.trace import room_for

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


@torch.no_grad()
def direct_attn_out(model: Model, lesson: Lesson, delta: Delta) -> Tensor:
    """attn_out of every layer with that layer's change alone, on zero-shot inputs: [queries, layers, width].

    One zero-shot pass over the batches of a reading, in which each attention module runs a second time with its
    change; what flows on is what it gave without.
    """
    parts = [slot for slot in delta.slots(model) if isinstance(slot, Part)]
    if foreign := sorted(set(delta) - {part.name for part in parts}):
        raise InputError(f"a change of keys and values is needed, and this delta also changes '{foreign[0]}'")
    again = _Again(frozenset(part.layer for part in parts))

    def read(batch: Batch) -> Tensor:
        again.read = batch.read
        with capturing(model, Session()):
            model.forward(batch.tokens, keep=1)
        return torch.stack([again.out.pop(i).to(model.device) for i in range(model.n_layers)], 1)

    found: Tensor | None = None
    with ExitStack() as stack:
        stack.enter_context(model.running())
        changed = projections(parts, delta.on(model, parts))
        stack.enter_context(beside(model, changed, active=lambda: again.running))
        for layer, attention in enumerate(model.attentions):
            again.watch(layer, attention, attention.get_submodule(model.family.output), stack)
        for batch in batches_of(model, lesson, None, None):
            for part, out in halving(model, batch, read):
                out = out.to(wide(model.dtype))
                if found is None:
                    found = room_for(out, len(lesson.queries), tensor_limit(model))
                found[torch.tensor(part.queries, device=found.device)] = out.to(found.device)
    assert found is not None, "a lesson has queries"
    return found


class _Again:
    """Runs attention modules a second time, and keeps what their output projection gives at the rows that are read.

    A layer that does not change is not run again: what it gave is what it would give.
    """

    def __init__(self, changed: frozenset[int]) -> None:
        self.changed = changed
        self.running = False
        self.read: RowIndex = 0
        self.out: dict[int, Tensor] = {}

    def watch(self, layer: int, attention: nn.Module, projection: nn.Module, stack: ExitStack) -> None:
        def repeat(module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
            self.running = True
            try:
                module.forward(*args, **kwargs)  # not through this hook again
            finally:
                self.running = False

        def keep(_module: nn.Module, _args: Any, output: Tensor) -> None:
            if self.running or layer not in self.changed:
                self.out[layer] = at(output, self.read)

        if layer in self.changed:
            stack.callback(attention.register_forward_hook(repeat, with_kwargs=True).remove)
        stack.callback(projection.register_forward_hook(keep).remove)
