"""Reading a model that is linearised in its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dualscope.models.trace import Trace

if TYPE_CHECKING:
    from dualscope.descent.changes_of_draws import DrawsTangent
    from dualscope.descent.trainable import Weights
    from dualscope.tasks.lesson import Lesson


def linearised(value: Tensor) -> Tensor:
    """f + J.delta, from a tensor that carries its derivative; a tensor that carries none does not change."""
    primal, tangent = forward_ad.unpack_dual(value)
    found: Tensor = primal if tangent is None else primal + tangent
    return found


@torch.no_grad()
def read_along(weights: Weights, lesson: Lesson, zero_shot: Trace, want: frozenset[str] = frozenset()) -> Trace:
    """The trace of f + J.delta: scores and outputs linearised, and probabilities of the linearised logits.

    What metrics take differences of is the zero-shot trace that is given plus J.delta, in float64: the two passes round
    differently, and a small tangent would be lost in that.
    """
    # Attention is the plain one, because fused kernels have no forward-mode derivative.
    model = weights.model
    with weights.along_change():
        # Logits are linearised before the softmax over the vocabulary, which would otherwise be linearised too.
        return _along(model.read(lesson, want=want, plain=True, logits_as=linearised), zero_shot)


@torch.no_grad()
def read_draws_along(weights: DrawsTangent, lesson: Lesson, zero_shot: Trace) -> list[Trace]:
    """The same of every draw, along its own change."""
    with weights.along_change():
        traces = weights.model.read_draws(lesson, weights.draws, plain=True, logits_as=linearised)
        return [_along(trace, zero_shot) for trace in traces]


def _along(trace: Trace, zero_shot: Trace) -> Trace:
    return replace(
        trace.map(linearised),
        attn_out=_plus(zero_shot.attn_out, trace.attn_out),
        attn_scores=_plus(zero_shot.attn_scores, trace.attn_scores),
        residual=_plus(zero_shot.residual, trace.residual),
    )


def _plus(start: Tensor, carrying: Tensor) -> Tensor:
    tangent = forward_ad.unpack_dual(carrying).tangent
    wide = torch.float32 if start.device.type == "mps" else torch.float64  # MPS has no float64
    start = start.to(carrying.device, wide)  # it may be kept in a file
    return start if tangent is None else start + tangent.to(wide)
