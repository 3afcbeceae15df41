"""Shortcuts (Din et al. 2023): linear maps from each layer's residual stream to the last layer's, from spare texts.

The unembedding is made for the last layer, and earlier ones may keep what they know in another basis. With the map
before it a layer's own loss asks what the layer knows, and not how it says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.learners.left_out_ridge import ridge
from dualscope.models.capture.after_attention import first_of
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.memory import halving

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

TEXTS = 64  # spare examples, without their labels
TOKENS = 1500  # of them at most


@dataclass(frozen=True)
class Shortcut:
    """From one layer's stream to the last one's: there + (h - here) matrix^T."""

    here: Tensor  # [width], the mean of this layer's stream
    there: Tensor  # [width], that of the last layer's
    matrix: Tensor  # [width, width]

    def __call__(self, hidden: Tensor) -> Tensor:
        here, there, matrix = (tensor.to(hidden) for tensor in (self.here, self.there, self.matrix))
        found: Tensor = there + (hidden - here) @ matrix.T
        return found


def shortcuts_of(bench: Bench) -> list[Shortcut]:
    """One for every layer but the last, the same for all that is taught on a bench."""
    home = bench.unaltered
    return home.once("shortcuts", lambda: fitted_shortcuts(home.model, home.materials(TEXTS, "lcgd with shortcuts")))


@torch.no_grad()
def fitted_shortcuts(model: Model, asked: Lesson) -> list[Shortcut]:
    """Least squares on the streams of a lesson's queries at all their tokens."""
    streams = token_streams(model, asked)[:, :TOKENS]
    *earlier, last = streams
    return [_fitted(one, last) for one in earlier]


def _fitted(inputs: Tensor, targets: Tensor) -> Shortcut:
    here, there = inputs.mean(0), targets.mean(0)
    x, y = inputs - here, targets - there
    return Shortcut(here, there, y.T @ ridge(x, y) @ x)


def token_streams(model: Model, lesson: Lesson) -> Tensor:
    """Every layer's residual stream at every token of the queries' prompts, BOS left out: [layers, tokens, width]."""
    found: dict[int, list[Tensor]] = {}

    def run(batch: Batch) -> None:
        layers: list[list[Tensor]] = []

        def hook(_: nn.Module, __: Any, output: Any) -> None:
            hidden = first_of(output)
            hidden = hidden.to(model.device, torch.promote_types(hidden.dtype, torch.float32))
            layers.append(_own_tokens(hidden, batch, lesson))

        with ExitStack() as stack:
            for block in model.blocks:
                stack.callback(block.register_forward_hook(hook).remove)
            stack.enter_context(capturing(model, Session()))
            model.forward(batch.tokens, keep=1)
        for row, query in enumerate(batch.queries):
            found[query] = [layer[row] for layer in layers]

    with model.running():
        for batch in batches_of(model, lesson, None, None):
            list(halving(model, batch, run))
    by_layer = zip(*(found[query] for query in sorted(found)), strict=True)
    return torch.stack([torch.cat(layer) for layer in by_layer])


def _own_tokens(hidden: Tensor, batch: Batch, lesson: Lesson) -> list[Tensor]:
    """[batch, tokens, width] -> of each query its own prompt's."""
    ends: Sequence[int] = [batch.lead + len(lesson.queries[query]) for query in batch.queries]
    return [row[batch.lead : end] for row, end in zip(hidden, ends, strict=True)]
