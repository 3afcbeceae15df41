"""Layer-causal gradient descent: no layer learns from what layers above it say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dualscope.descent.gradients import Gradient
from dualscope.descent.layer_losses import visiting
from dualscope.descent.loop import Adjust, Step, StepState, Taken, mean_gradient, take, unchanged
from dualscope.descent.samples import Objective, Sample
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


class LocalOptions(DescentOptions):
    """How a layer's own loss is made."""

    readout: Literal["block", "attention"] = Field(
        "block", description="what is unembedded: the block's output, or the stream right after its attention"
    )
    space: Literal["vocabulary", "labels"] = Field(
        "vocabulary", description="cross-entropy over all tokens, or over those of the label words (label tokens only)"
    )


class LcgdOptions(LocalOptions):
    schedule: Literal["parallel", "sequential"] = Field(
        "parallel", description="all layers step at once, or each before the next one sees its output"
    )
    granularity: Literal["demonstration", "token"] = Field("demonstration", description="what one step is taken on")

    @model_validator(mode="after")
    def _whole_batches_are_parallel(self) -> LcgdOptions:
        if self.full_batch and self.schedule == "sequential":
            raise ValueError("full_batch needs schedule: parallel, because a sequential layer steps at every sample")
        return self


@LEARNERS.register("lcgd")
class Lcgd(Learner[LcgdOptions]):
    """Every layer learns from its own loss alone: its output through the final norm and unembedding."""

    title = "layer-causal gradient descent"
    colour = "@vermilion"
    options = LcgdOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: LcgdOptions) -> Learned:
        return descend_locally(bench, self.given_lr(lr), options, options.schedule, options.granularity)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: LcgdOptions) -> LearnedDraws | None:
        return descend_locally_draws(benches, self.given_lr(lr), options, options.schedule, options.granularity)


def descend_locally(
    bench: Bench,
    lr: float,
    options: LocalOptions,
    schedule: Literal["parallel", "sequential"] = "parallel",
    granularity: Literal["demonstration", "token"] = "demonstration",
    adjust: Adjust = unchanged,
) -> Learned:
    if options.space == "labels":
        options = options.model_copy(update={"loss": "label"})
    step = lcgd_step(bench, options, sequential=schedule == "sequential")
    return descend(bench, bench.lesson.training, lr, options, step, adjust, by_token=granularity == "token")


def descend_locally_draws(
    benches: Sequence[Bench],
    lr: float,
    options: LocalOptions,
    schedule: Literal["parallel", "sequential"] = "parallel",
    granularity: Literal["demonstration", "token"] = "demonstration",
    adjust: Adjust = unchanged,
    measures: bool = False,
    reads: bool = True,
) -> LearnedDraws | None:
    """The same on several draws at once."""
    if options.space == "labels":
        options = options.model_copy(update={"loss": "label"})
    step = lcgd_step(benches[0], options, sequential=schedule == "sequential")
    by_token = granularity == "token"
    return descend_draws(benches, lr, options, step, adjust, by_token=by_token, measures=measures, reads=reads)


def lcgd_step(bench: Bench, options: LocalOptions, sequential: bool = False) -> Step:
    """One step of every layer on its own loss, in one forward pass."""
    model = bench.model
    objective = Objective()
    if options.space == "labels":
        objective = Objective.of_labels(bench.lesson, model.device)

    def visit_all(state: StepState, sample: Sample, share: int, found: Gradient, taken: list[Taken]) -> None:
        weights, recorder = state.weights, state.recorder
        learning = {slot.layer for slot in weights.slots}
        # A layer that has said its word may move at once, unless the step's size depends on other layers or samples.
        at_once = sequential or (share == 1 and state.adjust is unchanged)

        def visit(layer: int, said: Tensor) -> bool:
            if layer not in learning:
                recorder.note(sample, (), layer)
                return False
            loss = objective(model.readout(sample.predicting(said)), sample)
            gradient, errors = weights.gradient(loss, layer, also=recorder.outputs(layer))
            recorder.note(sample, [error / share for error in errors], layer)
            if at_once:
                taken.append(take(state, gradient))
            else:
                found.update(gradient)
            return sequential

        with torch.enable_grad(), visiting(model, options.readout, visit):
            model.forward(sample.inputs, keep=1)

    def step(state: StepState, batch: Sequence[Sample]) -> Taken:
        taken: list[Taken] = []

        def gradient(sample: Sample) -> Gradient:
            found: Gradient = {}
            visit_all(state, sample, len(batch), found, taken)
            return found

        total = mean_gradient(state.weights, batch, gradient)
        return sum(taken[1:], taken[0]) if taken else take(state, total)

    return step
