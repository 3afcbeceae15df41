"""The most that can be said for gradient descent: its rate and epochs are those that respond most as ICL does."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from dualscope.choosing.halving import FIGURES, GRID, HELD_OUT, Choice, Rounds, Score, Search, Settings
from dualscope.core.canonical import canonical
from dualscope.core.errors import NotFiniteError
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.core.response_products import correlation
from dualscope.core.spec import IN_CONTEXT, PLAIN
from dualscope.learners.controls import identify
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.gradient.gd import EPOCHS, KEEP, gd_step
from dualscope.learners.interventions import SpareRelabel
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner
from dualscope.learners.response_bench import OnDraws, ResponseBench, answer_vectors, centred, function_part
from dualscope.models.reading.footprint import TrainingDemand

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model

OPPOSITE = -1.0  # the response of a rate at which descent diverges: no response is further from ICL's


class NearestOptions(Options):
    lr: float | None = Field(
        None, gt=0, description="learning rate; none given: the one that responds most as ICL does"
    )
    epochs: int | None = Field(
        None, ge=1, le=MOST_EPOCHS, description="passes over the demonstrations; none given: chosen with the rate"
    )
    fit: int = Field(32, ge=8, description="spare examples that are asked while choosing")
    draws: int = Field(8, ge=8, description="relabellings to choose on, other ones than the study's")

    def descent(self) -> DescentOptions:
        return DescentOptions.model_validate({"epochs": self.epochs})


@LEARNERS.register("gd-nearest")
class GdNearest(Learner[NearestOptions]):
    """GD at the rate and for the epochs whose answers respond most as ICL's do, on spare examples and other draws."""

    title = "the gradient descent that is nearest to ICL"
    role = "ceiling"
    options = NearestOptions
    family = "gradient"

    open = ("lr", "epochs")

    def training(self, options: NearestOptions) -> TrainingDemand:
        return TrainingDemand()

    def candidates(self, model: Model, options: NearestOptions) -> list[Settings]:
        return [{"lr": lr} for lr in (GRID if options.lr is None else (options.lr,))]

    def choose(self, benches: Sequence[Bench], options: NearestOptions) -> Choice:
        """All rates for one epoch, the best third for three, of these a third for ten: the mean response over seeds."""
        epochs = EPOCHS if options.epochs is None else (options.epochs,)
        rounds = Rounds((1,), grows="epochs", values=epochs, keep=KEEP)
        search, asked = Search(rounds, [bench.seed for bench in benches]), [_Asked(one, options) for one in benches]
        candidates = self.candidates(benches[0].model, options)
        while not search.is_over:
            alive = candidates if search.candidates is None else map(json.loads, search.candidates)
            tried = [rounds.settings_of(search.number, one) for one in alive]
            search.take({one.seed: {canonical(dict(own)): one.score(own) for own in tried} for one in asked})
        found = search.choice()
        curve = [
            {name: value for name, value in row.items() if name not in FIGURES or name == "seed"}
            | {HELD_OUT: row["nll"]}
            for row in found.curve
        ]
        return replace(found, curve=tuple(curve), n=options.fit * len(benches))

    def learn(self, bench: Bench, lr: float | None, options: NearestOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.lr is not None
        learned = descend(bench, bench.lesson.training, options.lr, options.descent(), gd_step)
        return replace(learned, choice=choice)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: NearestOptions) -> LearnedDraws | None:
        options, _ = benches[0].chosen(self, options)  # that of the lesson itself, for all draws
        assert options.lr is not None
        return descend_draws(benches, options.lr, options.descent(), gd_step)


class _Asked:
    """The demonstrations of one seed before spare examples, relabelled; and how ICL's answers respond to that."""

    def __init__(self, bench: Bench, options: NearestOptions) -> None:
        asked = bench.asking(bench.materials(options.fit, "the descent that is nearest to ICL"))
        self.seed = bench.seed
        self._draws = ResponseBench(asked, SpareRelabel(), options.draws)
        self._icl = self._draws.on_draws(IN_CONTEXT)

    def score(self, settings: Settings) -> Score:
        """1 less the response, as a loss."""
        learning = identify(PLAIN, {"epochs": settings["epochs"]}, lr=settings["lr"])
        try:
            found = response(self._icl, self._draws.on_draws(learning))
        except NotFiniteError:
            found = OPPOSITE
        return Score(nll=1 - found, n=1)


def response(reference: OnDraws, own: OnDraws) -> float:
    """r of the answers, on the draws that both have: `response_answers`. 0 where one of them does not move."""
    levels = {draw.index: draw.level for draw in reference.draws}
    both = [draw.index for draw in own.draws if draw.index in levels]

    def moved(of: OnDraws) -> Tensor:
        traces = {draw.index: trace for draw, trace in zip(of.draws, of.traces, strict=True)}
        answers = torch.stack([answer_vectors(traces[index].label_logprobs) for index in both])
        return function_part(centred(answers, [levels[index] for index in both]))

    r, s = moved(reference), moved(own)
    found = float(correlation((r * s).sum(), r.square().sum(), s.square().sum()))
    return 0.0 if math.isnan(found) else found
