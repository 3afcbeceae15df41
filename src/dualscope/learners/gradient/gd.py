"""Gradient descent on the key and value projections: the papers' fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dualscope.descent.gradients import Gradient
from dualscope.descent.loop import Stride, stepping
from dualscope.descent.samples import Objective, Sample
from dualscope.learners.gradient.course import DescentOptions, descend
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("gd", "ft")
class Gd(Learner[DescentOptions]):
    """SGD on the keys' and values' weights, one demonstration a step, one pass."""

    options = DescentOptions
    family = "gradient"
    needs_rate = True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        return descend(bench, bench.lesson.training, self.rate(lr), options, gd_step)


@stepping
@torch.enable_grad()
def gd_step(stride: Stride, sample: Sample, batch: int) -> Gradient:
    """Forward, backward through the whole model."""
    weights, recorder = stride.weights, stride.recorder
    logits = weights.model.forward(sample.tokens[None])[0, sample.rows]
    loss = Objective()(logits, sample)
    outputs = recorder.outputs()
    gradient, errors = weights.gradient(loss, also=outputs)
    recorder.note(sample, [error / batch for error in errors])
    return gradient
