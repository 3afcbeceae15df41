"""Gradient descent on some layers: which of them is chosen on spare examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dualscope.choosing.halving import GRID, RATES, Rounds, Settings
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.gradient.gd import gd_step
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner
from dualscope.models.footprint import TrainingDemand

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

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
