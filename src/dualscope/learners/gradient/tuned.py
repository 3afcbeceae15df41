"""Gradient descent at its best: what the papers' one pass leaves open, chosen on spare examples."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dualscope.choosing.halving import GRID, Rounds, Settings
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.descent.adam import Adam
from dualscope.descent.loop import unchanged
from dualscope.descent.parameters import Slot, Whole, is_low
from dualscope.learners.gradient.descend import DescentOptions, descend
from dualscope.learners.gradient.gd import gd_step
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.footprint import TrainingDemand

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

EPOCHS = (1, 3, 10)
KEEP = 1 / 3  # of the candidates goes on to more epochs
ASKED = 100  # spare examples a seed
SEEDS = 2  # that it is chosen over; each costs a hundred runs of training
# Adam's first step moves every weight by the rate, whatever the gradient: beyond 0.01, by about as much as it weighs.
RATES = {"sgd": GRID, "adam": tuple(float(f"{rate / 10:.3g}") for rate in GRID if rate <= 0.1)}


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
            for lr in (RATES[optimiser] if options.lr is None else (options.lr,))
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
