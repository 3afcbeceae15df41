"""Gradient descent on the key and value projections: the papers' fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from dualscope.choosing.halving import GRID, RATES, Rounds, Settings
from dualscope.core.errors import InputError
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.descent.delta import Delta
from dualscope.descent.loop import Adam, StepState, stepping, unchanged
from dualscope.descent.parameters import Gradient, Slot, Whole, is_low
from dualscope.descent.samples import Objective, Sample
from dualscope.descent.trainable import Weights, weights_for
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws, read_along
from dualscope.learners.learner import LEARNERS, Change, Learned, LearnedDraws, Learner
from dualscope.models.reading.footprint import TrainingDemand
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model


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


# Gradient descent on every weight of the model.


class AllOptions(Options):
    """The options of `gd` that make sense where everything learns."""

    epochs: int = Field(1, ge=1, le=MOST_EPOCHS, description="passes over the demonstrations")
    full_batch: bool = Field(False, description="one step an epoch, on the mean over the demonstrations")
    order: int = Field(0, ge=0, description="0: the episode's own order; k: its k-th permutation")
    loss: Literal["all", "label"] = Field("all", description="the tokens of a demonstration that count")


@LEARNERS.register("gd-all")
class GdAll(Learner[AllOptions]):
    """SGD on all weights: embeddings, norms, feed-forward layers and attention."""

    title = "gradient descent on all weights"
    colour = "@navy"
    options = AllOptions
    family = "gradient"
    needs_lr = True

    def training(self, options: AllOptions) -> TrainingDemand:
        return TrainingDemand(everything=True)

    def learn(self, bench: Bench, lr: float | None, options: AllOptions) -> Learned:
        slots, common = self._slots(bench.model), DescentOptions(**options.model_dump())
        return descend(bench, bench.lesson.training, self.given_lr(lr), common, gd_step, slots=slots)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: AllOptions) -> LearnedDraws | None:
        slots, common = self._slots(benches[0].model), DescentOptions(**options.model_dump())
        return descend_draws(benches, self.given_lr(lr), common, gd_step, slots=slots)

    def _slots(self, model: Model) -> list[Slot]:
        if is_low(model):
            raise InputError(
                f"gd-all cannot train {model.name} in {model.precision}: small updates of norms and embeddings would "
                "be swallowed; load it with --dtype float32"
            )
        return [Whole(name) for name, _ in model.hf.named_parameters()]


# Gradient descent on some layers: which of them is chosen on spare examples.


PARTS = (1, 2, 3, 4)  # all layers, halves, thirds and quarters are tried
RATE_GRID = tuple(rate for rate in GRID if rate >= 0.01)  # fewer layers take larger steps


class SomeLayersOptions(Options):
    lr: float | None = Field(None, gt=0, description="learning rate; none given: chosen")
    layers: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="the layers that learn; none given: all, a half, a third or a quarter of them, as is chosen",
    )
    epochs: int = Field(1, ge=1, le=MOST_EPOCHS, description="passes over the demonstrations")
    order: int = Field(0, ge=0, description="0: the episode's own order; k: its k-th permutation")
    loss: Literal["all", "label"] = Field("all", description="the tokens of a demonstration that count")

    def descent(self) -> DescentOptions:
        layers = None if self.layers is None else tuple(self.layers)  # what was chosen is kept as JSON, in lists
        common = {"epochs": self.epochs, "order": self.order, "loss": self.loss}
        return DescentOptions.model_validate({"layers": layers, **common})


@LEARNERS.register("gd-layers")
class GdLayers(Learner[SomeLayersOptions]):
    """GD on the keys and values of those neighbouring layers, and at that rate, that learn best."""

    title = "gradient descent on the layers that learn best"
    options = SomeLayersOptions
    family = "gradient"

    open = ("lr", "layers")

    def training(self, options: SomeLayersOptions) -> TrainingDemand:
        return TrainingDemand()

    def rounds(self, options: SomeLayersOptions) -> Rounds:
        return RATES

    def candidates(self, model: Model, options: SomeLayersOptions) -> list[Settings]:
        sets = layer_sets(model.n_layers) if options.layers is None else [options.layers]
        rates = RATE_GRID if options.lr is None else (options.lr,)
        return [{"layers": list(layers), "lr": lr} for layers in sets for lr in rates]

    def learn(self, bench: Bench, lr: float | None, options: SomeLayersOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.lr is not None
        learned = descend(bench, bench.lesson.training, options.lr, options.descent(), gd_step)
        return replace(learned, choice=choice)

    def learn_draws(
        self, benches: Sequence[Bench], lr: float | None, options: SomeLayersOptions
    ) -> LearnedDraws | None:
        options, _ = benches[0].chosen(self, options)  # that of the lesson itself, for all draws
        assert options.lr is not None
        return descend_draws(benches, options.lr, options.descent(), gd_step)


def layer_sets(layers: int) -> list[tuple[int, ...]]:
    """All layers, and the halves, thirds and quarters of them, from below; each set once.

    >>> layer_sets(4)
    [(0, 1, 2, 3), (0, 1), (2, 3), (0,), (1, 2), (3,), (1,), (2,)]
    """
    found: dict[tuple[int, ...], None] = {}
    for parts in PARTS:
        edges = [round(layers * part / parts) for part in range(parts + 1)]
        for first, last in pairwise(edges):
            if last > first:
                found[tuple(range(first, last))] = None
    return list(found)


# Gradient descent at its best: what the papers' one pass leaves open, chosen on spare examples.


EPOCHS = (1, 3, 10)
KEEP = 1 / 3  # of the candidates goes on to more epochs
ASKED = 100  # spare examples a seed
SEEDS = 2  # that it is chosen over; each costs a hundred runs of training
# Adam's first step moves every weight by the rate, whatever the gradient: beyond 0.01, by about as much as it weighs.
RATES_OF = {"sgd": GRID, "adam": tuple(float(f"{rate / 10:.3g}") for rate in GRID if rate <= 0.1)}


class TunedOptions(Options):
    lr: float | None = Field(None, gt=0, description="learning rate; none given: chosen")
    epochs: int | None = Field(
        None, ge=1, le=MOST_EPOCHS, description="passes over the demonstrations; none given: chosen"
    )
    loss: Literal["all", "label"] | None = Field(None, description="the tokens that count; none given: chosen")
    parameters: Literal["kv", "all"] | None = Field(
        None, description="keys and values, or all weights; none given: chosen"
    )
    optimiser: Literal["sgd", "adam"] | None = Field(None, description="none given: chosen")


@LEARNERS.register("gd-tuned")
class GdTuned(Learner[TunedOptions]):
    """GD whose rate, epochs, loss, parameters and optimiser are those that learn best."""

    title = "gradient descent at its best"
    options = TunedOptions
    family = "gradient"

    open = ("lr", "epochs", "loss", "parameters", "optimiser")

    def training(self, options: TunedOptions) -> TrainingDemand:
        return TrainingDemand(everything=options.parameters != "kv", adam=options.optimiser != "sgd")

    def rounds(self, options: TunedOptions) -> Rounds:
        """All candidates learn for one epoch, the best third for three, of these a third for ten."""
        epochs = EPOCHS if options.epochs is None else (options.epochs,)
        return Rounds((ASKED,), grows="epochs", values=epochs, keep=KEEP, seeds=SEEDS)

    def candidates(self, model: Model, options: TunedOptions) -> list[Settings]:
        """All combinations of what is open, but for the epochs; weights of 16 bits learn beside alone: keys, values."""
        parameters = ("kv",) if is_low(model) else ("kv", "all")
        found = product(
            ("sgd", "adam") if options.optimiser is None else (options.optimiser,),
            ("all", "label") if options.loss is None else (options.loss,),
            parameters if options.parameters is None else (options.parameters,),
        )
        return [
            {"lr": lr, "loss": loss, "parameters": which, "optimiser": optimiser}
            for optimiser, loss, which in found
            for lr in (RATES_OF[optimiser] if options.lr is None else (options.lr,))
        ]

    def learn(self, bench: Bench, lr: float | None, options: TunedOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.lr is not None
        assert options.epochs is not None
        assert options.loss is not None
        common = DescentOptions.model_validate({"epochs": options.epochs, "loss": options.loss})
        slots: list[Slot] | None = None
        if options.parameters == "all":
            slots = [Whole(name) for name, _ in bench.model.hf.named_parameters()]
        adjust = Adam() if options.optimiser == "adam" else unchanged
        learned = descend(bench, bench.lesson.training, options.lr, common, gd_step, adjust=adjust, slots=slots)
        return replace(learned, choice=choice)


# Gradient descent in the tangent space of the trained weights.


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
