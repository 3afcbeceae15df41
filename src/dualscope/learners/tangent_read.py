"""Reading a model that is linearised in its weights."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from dualscope.models.trace import Trace

if TYPE_CHECKING:
    from dualscope.descent.trainable import Weights
    from dualscope.learners.bench import Bench


def linearised(value: Tensor) -> Tensor:
    """f + J.delta, from a tensor that carries its derivative; a tensor that carries none does not change."""
    primal, tangent = forward_ad.unpack_dual(value)
    return primal if tangent is None else primal + tangent


@torch.no_grad()
def read_along(weights: Weights, bench: Bench) -> Trace:
    """The trace of f + J.delta: scores and outputs linearised, and probabilities of the linearised logits."""
    # Attention is the plain one, because fused kernels have no forward-mode derivative.
    model = weights.model
    hook = model.hf.register_forward_hook(_linearised_logits)
    plain_readout = model.readout  # early exits go through it, and to a softmax, like the logits
    model.__dict__["readout"] = lambda *args, **options: linearised(plain_readout(*args, **options))
    try:
        with weights.along_change():
            trace = model.read(bench.lesson, want=bench.read_want, plain=True)
            values: dict[str, Any] = {f.name: getattr(trace, f.name) for f in fields(trace)}
            values |= {name: linearised(v) for name, v in values.items() if isinstance(v, Tensor)}
            values["extras"] = {name: linearised(v) for name, v in trace.extras.items()}
            return Trace(**values)
    finally:
        hook.remove()
        del model.__dict__["readout"]


def _linearised_logits(module: nn.Module, args: Any, output: Any) -> Any:
    # Before the softmax over the vocabulary, which would otherwise be linearised too.
    output.logits = linearised(output.logits)
    return output
