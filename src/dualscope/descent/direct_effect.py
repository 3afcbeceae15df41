"""What a layer's own change does to its attention, without the drift from the layers below."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.descent.delta import Delta
from dualscope.descent.parameters import wide
from dualscope.descent.shadow import shadowed
from dualscope.models.capture.hooks import Session, capturing
from dualscope.models.reading.memory import batch_size, is_out_of_memory

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


@torch.no_grad()
def direct_attn_out(model: Model, lesson: Lesson, delta: Delta) -> Tensor:
    """attn_out of every layer with that layer's change alone, on zero-shot inputs: [queries, layers, width].

    One zero-shot pass, in which each attention module runs a second time with its change; what flows on is what
    it gave without.
    """
    if foreign := [name for name in delta if not name.startswith("layers.")]:
        raise InputError(f"a change of keys and values is needed, and this delta also changes '{foreign[0]}'")
    with ExitStack() as stack:
        again = _Again()
        stack.enter_context(model.running())
        stack.enter_context(shadowed(model, delta.in_full(model), active=lambda: again.running))
        for layer, attention in enumerate(model.attentions):
            again.watch(layer, attention, attention.get_submodule(model.family.output), stack)
        found: Tensor | None = None
        for members in _by_length(lesson):
            size = batch_size(model, len(lesson.bos) + len(lesson.own_tokens(members[0])), 0)
            pending = [members[first : first + size] for first in range(0, len(members), size)]
            while pending:
                batch = pending.pop()
                tokens = [[*lesson.bos, *lesson.own_tokens(i)] for i in batch]
                try:
                    with capturing(model, Session()):
                        model.forward(torch.tensor(tokens, device=model.device), keep=1)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error) or len(batch) == 1:
                        raise
                    pending += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                    continue
                out = torch.stack([again.out[layer] for layer in range(model.n_layers)], 1).to(
                    wide(model.dtype)
                )
                if found is None:
                    found = out.new_empty(len(lesson.queries), *out.shape[1:])
                found[torch.tensor(batch, device=out.device)] = out
    assert found is not None, "a lesson has queries"
    return found


def _by_length(lesson: Lesson) -> list[list[int]]:
    groups = defaultdict(list)
    for i in range(len(lesson.queries)):
        groups[len(lesson.own_tokens(i))].append(i)
    return [members for _, members in sorted(groups.items(), reverse=True)]


class _Again:
    """Runs attention modules a second time, and keeps what their output projection gives at the last token."""

    def __init__(self) -> None:
        self.running = False
        self.out: dict[int, Tensor] = {}

    def watch(self, layer: int, attention: nn.Module, projection: nn.Module, stack: ExitStack) -> None:
        def repeat(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.running = True
            try:
                module.forward(*args, **kwargs)  # not through this hook again
            finally:
                self.running = False

        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            if self.running:
                self.out[layer] = output[:, -1]

        stack.callback(attention.register_forward_hook(repeat, with_kwargs=True).remove)
        stack.callback(projection.register_forward_hook(keep).remove)
