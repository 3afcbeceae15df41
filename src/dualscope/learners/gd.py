"""Gradient descent on the key and value projections: the papers' fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dualscope.learners.descent import (
    DescentOptions,
    Stride,
    Taken,
    descend,
    mean_gradient,
    take,
)
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.learners.samples import Objective, Sample
from dualscope.learners.weights import Gradient

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("gd", "ft")
class Gd(Learner[DescentOptions]):
    """SGD on the keys' and values' weights, one demonstration a step, one pass."""

    options = DescentOptions
    needs_rate = True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        return descend(bench, bench.lesson.training, self.rate(lr), options, gd_step)


def gd_step(stride: Stride, batch: Sequence[Sample]) -> Taken:
    """Forward, backward through the whole model, step."""

    def gradient(sample: Sample) -> Gradient:
        return _gradient(stride, sample, len(batch))

    return take(stride, mean_gradient(stride.weights, batch, gradient))


@torch.enable_grad()
def _gradient(stride: Stride, sample: Sample, batch: int) -> Gradient:
    weights, recorder = stride.weights, stride.recorder
    logits = weights.model.forward(sample.tokens[None])[0, sample.rows]
    loss = Objective()(logits, sample)
    outputs = recorder.outputs()
    gradient, errors = weights.gradient(loss, also=outputs)
    recorder.note(sample, [error / batch for error in errors])
    return gradient
