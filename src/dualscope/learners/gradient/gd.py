"""Gradient descent on the key and value projections: the papers' fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dualscope.descent.gradients import Gradient
from dualscope.descent.loop import StepState, stepping
from dualscope.descent.samples import Objective, Sample
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("gd", "ft")
class Gd(Learner[DescentOptions]):
    """SGD on the keys' and values' weights, one demonstration a step, one pass."""

    title = "gradient descent"
    colour = "@blue"
    options = DescentOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        return descend(bench, bench.lesson.training, self.given_lr(lr), options, gd_step)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: DescentOptions) -> LearnedDraws | None:
        return descend_draws(benches, self.given_lr(lr), options, gd_step)


@stepping
@torch.enable_grad()
def gd_step(state: StepState, sample: Sample, batch: int) -> Gradient:
    """Forward, backward through the whole model."""
    weights, recorder = state.weights, state.recorder
    logits = sample.predicting(weights.model.forward(sample.inputs))
    loss = Objective()(logits, sample)
    outputs = recorder.outputs()
    gradient, errors = weights.gradient(loss, also=outputs)
    recorder.note(sample, [error / batch for error in errors])
    return gradient
