"""Gradient descent on every weight of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dualscope.core.errors import InputError
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.descent.parameters import Slot, Whole, is_low
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.gradient.gd import gd_step
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner
from dualscope.models.footprint import TrainingDemand

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model


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
