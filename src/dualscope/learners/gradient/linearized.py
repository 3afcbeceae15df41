"""Gradient descent in the tangent space of the trained weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from dualscope.descent.delta import Delta
from dualscope.descent.gradients import Gradient
from dualscope.descent.loop import StepState, stepping
from dualscope.descent.samples import Sample
from dualscope.descent.trainable import Weights, weights_for
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws, read_along
from dualscope.learners.learner import LEARNERS, Change, Learned, LearnedDraws, Learner
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("gd-linearized")
class GdLinearized(Learner[DescentOptions]):
    """GD on f + J.delta, the model linearised in its weights, and the trace of that."""

    title = "linearised gradient descent"
    colour = "@sky"
    options = DescentOptions
    family = "gradient"
    can_be_planted = False  # its trace is of the linearised model
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: DescentOptions) -> Learned:
        training = bench.lesson.training
        return descend(bench, training, self.given_lr(lr), options, linearized_step, tangent=True)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: DescentOptions) -> LearnedDraws | None:
        if benches[0].model.device.type == "cuda":  # a step is recorded there, and made of two backward passes
            return None
        return descend_draws(benches, self.given_lr(lr), options, linearized_step, tangent=True)

    def read(self, bench: Bench, change: Change, options: DescentOptions, few: bool = False) -> Trace:
        assert isinstance(change, Delta), "what GD changes is weights"
        with weights_for(bench.model, options.slots(bench.model), tangent=True) as weights:
            weights.changes.update(change)
            if few:
                return read_along(weights, bench.few, bench.zero_shot_again)
            return read_along(weights, bench.lesson, bench.zero_shot, bench.read_want)


@stepping
@torch.enable_grad()
def linearized_step(state: StepState, sample: Sample, batch: int) -> Gradient:
    """Forward with derivative (a jvp), backward at the original weights (a vjp)."""
    weights, recorder = state.weights, state.recorder
    by_two_passes = weights.model.device.type == "cuda"
    logits, tangent = (two_backward_passes if by_two_passes else forward_mode)(weights, sample)
    with torch.no_grad():
        wide = torch.promote_types(logits.dtype, torch.float32)
        probabilities = (logits + tangent).to(wide).softmax(-1)
        wrong = probabilities - F.one_hot(sample.targets, logits.shape[-1])
        wrong *= 1 / len(wrong) if sample.shares is None else sample.shares[:, None].to(wide)
    gradient, errors = weights.gradient(logits, also=recorder.outputs(), seed=wrong.to(logits.dtype))
    recorder.note(sample, [error / batch for error in errors])
    return gradient


def forward_mode(weights: Weights, sample: Sample) -> tuple[Tensor, Tensor]:
    """Logits at the original weights and their derivative along the change so far: least arithmetic."""
    with weights.along_change():
        primal, tangent = forward_ad.unpack_dual(sample.predicting(weights.model.forward(sample.inputs)))
    # Used outside, where nothing carries a derivative any more: the gradient needs none, and some have no formula.
    return primal, tangent


def two_backward_passes(weights: Weights, sample: Sample) -> tuple[Tensor, Tensor]:
    """The same on a GPU, where arithmetic is cheap and torch's forward mode is not.

    It goes through Python for every sum with a constant, while the GPU waits.
    """
    with weights.at_start():
        logits = sample.predicting(weights.model.forward(sample.inputs))
    return logits, weights.derivative(logits)
