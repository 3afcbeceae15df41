"""Gradient descent at its best: what the papers' one pass leaves open, chosen on spare examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dualscope.core.halving import GRID
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.descent.adam import Adam
from dualscope.descent.loop import unchanged
from dualscope.descent.parameters import Slot, Whole, is_low
from dualscope.learners.choice import Choice, judges, rank, row_of
from dualscope.learners.gradient.descend import DescentOptions, descend
from dualscope.learners.gradient.gd import gd_step
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.footprint import TrainingDemand

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.models.trace import Trace

EPOCHS = (1, 3, 10)
KEEP = 3  # a third of the candidates goes on to more epochs
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

    def is_open(self, options: TunedOptions) -> bool:
        return None in options.model_dump().values()

    def training(self, options: TunedOptions) -> TrainingDemand:
        return TrainingDemand(everything=options.parameters != "kv", adam=options.optimiser != "sgd")

    def choose(self, benches: Sequence[Bench], options: TunedOptions) -> Choice:
        """Successive halving: all candidates learn for one epoch, the best third for three, of these a third for ten.

        The choice is the best of all that was tried.
        """
        asked = [judge for bench in benches[:SEEDS] for judge in judges(bench, 0)]
        asked = [bench.asking(bench.lesson.only(range(min(ASKED, len(bench.lesson.queries))))) for bench in asked]
        trials = benches[0].trials
        curve = [trials.row(i, {}, partial(_scored, one, one.zero_shot, {})) for i, one in enumerate(asked)]
        alive = candidates(asked[0].model, options)
        tried: list[dict[str, Any]] = []
        for epochs in EPOCHS if options.epochs is None else (options.epochs,):
            alive = [{**candidate, "epochs": epochs} for candidate in alive]
            for (number, bench), candidate in product(enumerate(asked), alive):
                attempt = partial(self._try, bench, options.model_copy(update=candidate), candidate)
                curve.append(trials.row(number, candidate, attempt))
            tried += alive
            alive = sorted(alive, key=lambda one: rank(curve, one))[: -(-len(alive) // KEEP)]
        best = min(tried, key=lambda one: rank(curve, one))
        return Choice(best, tuple(curve), sum(len(b.lesson.queries) for b in asked), at_edge=_at_edge(best, options))

    def _try(self, bench: Bench, options: TunedOptions, candidate: dict[str, Any]) -> dict[str, Any]:
        # A bench of its own each time, so that no trace is kept.
        return _scored(bench, self.learn(bench.asking(bench.lesson), None, options).trace, candidate)

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


def _scored(bench: Bench, trace: Trace, candidate: dict[str, Any]) -> dict[str, Any]:
    return row_of(trace.label_logprobs, trace.labels, candidate, bench.seed)


def _at_edge(best: Mapping[str, Any], options: TunedOptions) -> bool:
    """Whether a smaller or larger rate than any that was tried, or more epochs, might be better yet."""
    rates = RATES[best["optimiser"]]
    return (options.lr is None and best["lr"] in (rates[0], rates[-1])) or (
        options.epochs is None and best["epochs"] == EPOCHS[-1]
    )


def candidates(model: Model, options: TunedOptions) -> list[dict[str, Any]]:
    """All combinations of what is open, but for the epochs; weights of 16 bits can only learn beside, which is K, V."""
    parameters = ("kv",) if is_low(model) else ("kv", "all")
    found = product(
        ("sgd", "adam") if options.optimiser is None else (options.optimiser,),
        ("all", "label") if options.loss is None else (options.loss,),
        parameters if options.parameters is None else (options.parameters,),
    )
    return [
        {"lr": rate, "loss": loss, "parameters": which, "optimiser": optimiser}
        for optimiser, loss, which in found
        for rate in (RATES[optimiser] if options.lr is None else (options.lr,))
    ]
