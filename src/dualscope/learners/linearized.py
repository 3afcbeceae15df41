"""Gradient descent in the tangent space of the trained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from dualscope.descent.loop import Stride, stepping
from dualscope.descent.samples import Sample
from dualscope.descent.trainable import Gradient
from dualscope.learners.gradient import DescentOptions, descend
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("gd-linearized")
class GdLinearized(Learner[DescentOptions]):
    """GD on f + J.delta, the model linearised in its weights, and the trace of that."""

    options = DescentOptions
    needs_rate = True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        training = bench.lesson.training
        return descend(bench, training, self.rate(lr), options, linearized_step, tangent=True)


@stepping
@torch.enable_grad()
def linearized_step(stride: Stride, sample: Sample, batch: int) -> Gradient:
    """Forward with derivative (a jvp), backward at the original weights (a vjp)."""
    weights, recorder = stride.weights, stride.recorder
    with weights.along_change():
        logits, tangent = forward_ad.unpack_dual(weights.model.forward(sample.tokens[None])[0, sample.rows])
        with torch.no_grad():
            wide = torch.promote_types(logits.dtype, torch.float32)
            probabilities = (logits + tangent).to(wide).softmax(-1)
            wrong = (probabilities - F.one_hot(sample.targets, logits.shape[-1])) / len(sample.targets)
    # Outside, where nothing carries a derivative any more: the gradient needs none, and some have no formula.
    gradient, errors = weights.gradient(logits, also=recorder.outputs(), seed=wrong.to(logits.dtype))
    recorder.note(sample, [error / batch for error in errors])
    return gradient
