"""Akyurek et al. 2023: which closed-form predictor does a trained in-context learner resemble?"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size
from dualscope.regression.baselines import (
    Filter,
    Spectrum,
    gradient_descent,
    implied_weights,
    least_squares,
    nearest,
    online_gradient_descent,
    ridge,
)
from dualscope.regression.emergence import APPEARS, check_appeared, check_rests
from dualscope.regression.experiment import EXPERIMENTS, PromptExperiment
from dualscope.regression.probes import ROWS, Draw, encoded, probed, read_by_networks
from dualscope.regression.problems import LinearFunctions, Prompts, draw_prompts, generators
from dualscope.regression.results import Results, shown_mean
from dualscope.regression.training import (
    ALL,
    LONGEST,
    TrainedLearner,
    Workplace,
    all_states_of,
    guesses_of,
    summed_up_states_of,
)

LEAST_SQUARES, BAYES, RIDGE = "least squares", "ridge, Bayes", "ridge, 0.1 d"
ONE_STEP, ONLINE, NEAREST = "one GD step", "online GD", "3 nearest"


@dataclass(frozen=True)
class Arm:
    """One transformer: its size, and the noise it was trained with."""

    layers: int
    width: int
    noise: float

    def __str__(self) -> str:
        return f"{self.layers} layers, width {self.width}, noise {self.noise:g}"


@EXPERIMENTS.register("akyurek")
class Akyurek(PromptExperiment):
    """GPT-2 blocks trained on prompts of linear functions, without and with noise, of several depths and widths.

    The ideal learner is least squares (of least norm where n < d) without noise, and with noise ridge with Bayes'
    penalty, sigma^2 over the prior variance of a weight, which is 1 / d.
    """

    summary: ClassVar[str] = "closed forms: which is nearest to a trained transformer, over depth, width and noise"

    d: int = 4
    points: int = 9
    noises: tuple[float, ...] = (0.0, 0.25)  # of the base size; targets have variance 1
    depths: tuple[int, ...] = (1, 2)  # at the base width, without noise
    widths: tuple[int, ...] = (16, 32)  # at the base depth, without noise
    rate: float = 3e-3  # of the base width; narrower ones learn at a higher one
    curriculum: int = 200
    test: int = 512  # prompts a seed
    contexts: int = 32  # prompts a seed whose implied weights are fitted
    probe_steps: int = 300  # of the probes that are networks

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The base size with every noise, then other depths and other widths without."""
        found = [Arm(self.layers, self.width, noise) for noise in self.noises]
        found += [Arm(depth, self.width, 0.0) for depth in self.depths]
        found += [Arm(self.layers, width, 0.0) for width in self.widths]
        return tuple(dict.fromkeys(found))

    @property
    def trainings(self) -> int:
        return len(self.arms)

    def size_of(self, arm: Arm) -> Size:
        return Size(arm.layers, arm.width, min(self.heads, max(1, arm.width // 8)))

    def rate_of(self, arm: Arm) -> float:
        """A narrow transformer waits longer before it begins: at the base rate one seed in three never did.

        >>> Akyurek(width=64, rate=0.002).rate_of(Arm(layers=4, width=4, noise=0.0))
        0.004
        """
        return self.rate * math.pow(self.width / arm.width, 0.25)

    def carry_out(self, results: Results, place: Workplace) -> None:
        for arm in self.arms:
            learned = self._trained(results, arm, place.of(str(arm).replace(" ", "-").replace(",", "")))
            self._compare(results, arm, learned, place)
            self._probe(results, arm, learned.model, place)

    def conclude(self, results: Results) -> None:
        lowest = "The lowest line is the closed form that the transformer is nearest to."
        results.figure("SPD", "Squared difference of predictions from each closed form", log_y=True, reads=lowest)
        results.figure("ILWD", "Squared difference of implied weights", log_y=True, reads=lowest)
        # With noise, least squares errs a thousandfold where examples are as many as dimensions.
        results.figure("squared error", "Error against the number of examples", log_y=True)
        results.figure(
            "probed",
            "What a probe reads off each layer (share of variance)",
            span=(-0.05, 1.0),
            reads="Of an untrained transformer a probe should read little, and of a trained one's late layers much.",
        )
        results.figure(LONGEST, "Error in training, longest prompt", marks=APPEARS, log_y=True)
        results.figure(ALL, "Error in training, all lengths", log_y=True)
        for axis in ("layers", "width", "noise"):
            title = f"Distance from the closed forms over {axis}"
            results.figure(f"mean SPD by {axis}", title, log_y=True, reads=lowest)

    def _trained(self, results: Results, arm: Arm, place: Workplace) -> TrainedLearner:
        functions, size, rate = LinearFunctions(self.d, arm.noise), self.size_of(arm), self.rate_of(arm)
        learned, appeared = self.trained(results, functions, place, str(arm), size=size, rate=rate)
        if arm.layers == self.layers and arm.width == self.width:
            check_appeared(results, str(arm), appeared)
            check_rests(results, str(arm), *(learned.training.curve(measure) for measure in (ALL, LONGEST)))
        return learned

    def filters(self, noise: float) -> dict[str, Filter]:
        """The predictors that are linear in the query, as filters of the examples' spectrum."""
        found: dict[str, Filter] = {LEAST_SQUARES: least_squares}
        if noise:
            found[BAYES] = ridge(noise**2 * self.d)
        found[RIDGE] = ridge(0.1 * self.d)
        found[ONE_STEP] = gradient_descent(1.0, 1)
        return found

    def _compare(self, results: Results, arm: Arm, learned: TrainedLearner, place: Workplace) -> None:
        functions = LinearFunctions(self.d, arm.noise)
        test = draw_prompts(functions, self.test, self.points, generators(self.seeds, 3, place.device))
        mine, target = guesses_of(learned.model, test).double(), test.target.cpu().double()
        spectrum = Spectrum.of(test.x, test.y)
        rivals = {name: spectrum.predict(kept) for name, kept in self.filters(arm.noise).items()}
        rivals[ONLINE] = online_gradient_descent(test.x, test.y, 1.0)
        rivals[NEAREST] = nearest(test.x, test.y).cpu().double()
        spd = {name: (mine - guess).square().mean(1) for name, guess in rivals.items()}  # [copies, points]
        error = {"trained": (mine - target).square().mean(1)}
        error |= {name: (guess - target).square().mean(1) for name, guess in rivals.items()}
        for metric, curves in (("SPD", spd), ("squared error", error)):
            for name, curve in curves.items():
                by_examples = {k: curve[:, k] for k in range(1, self.points)}
                results.over_x(name, metric, by_examples, self.seeds, "examples", str(arm))
        ilwd = self._weights(results, arm, learned.model, place)
        mean_spd = {name: curve[:, 1:].mean(1) for name, curve in spd.items()}
        for axis, x in (("layers", arm.layers), ("width", arm.width), ("noise", arm.noise)):
            for name, values in mean_spd.items() if self._on_axis(arm, axis) else ():
                results.over_x(name, f"mean SPD by {axis}", {x: values}, self.seeds, axis, axis)
        rows = [
            (
                name,
                shown_mean(mean_spd[name]) if name in mean_spd else "",
                shown_mean(ilwd[name]) if name in ilwd else "",
                shown_mean(curve[:, -1]),
            )
            for name, curve in error.items()
        ]
        most = f"{self.points - 1} examples"
        columns = ("predictor", "SPD, all lengths", f"ILWD, {most}", f"error, {most}")
        results.table(f"{arm}, d = {self.d}", columns, rows)
        if arm.layers == self.layers and arm.width == self.width:
            wanted = BAYES if arm.noise else LEAST_SQUARES
            for metric, found in (("SPD", mean_spd), ("ILWD", ilwd)):
                nearest_one = min(found, key=lambda name: float(found[name].mean()))
                every = all(bool((found[wanted] < values).all()) for name, values in found.items() if name != wanted)
                results.check(
                    f"{arm}: of all closed forms the nearest is {wanted}, by {metric}, in every seed",
                    f"nearest {nearest_one}; {wanted} {shown_mean(found[wanted])}",
                    every,
                )
            results.check(
                f"{arm}: SPD from {wanted} is at most 5 % of the targets' variance",
                shown_mean(mean_spd[wanted]),
                float(mean_spd[wanted].mean()) <= 0.05,
            )

    def _on_axis(self, arm: Arm, axis: str) -> bool:
        """Whether an arm differs from the base one by nothing but its place on that axis."""
        return replace(arm, **{axis: 0}) == replace(Arm(self.layers, self.width, 0.0), **{axis: 0})

    def _weights(self, results: Results, arm: Arm, model: Gpt2Learner, place: Workplace) -> dict[str, Tensor]:
        """ILWD by number of examples; what is found at the longest prompts is returned."""
        functions = LinearFunctions(self.d, arm.noise)
        found: dict[str, Tensor] = {}
        for k in sorted({max(1, self.d // 2), self.d, self.points - 1}):
            context = draw_prompts(functions, self.contexts, k + 1, generators(self.seeds, 5, place.device))
            mine = implied_weights(lambda p: guesses_of(model, p)[..., -1], context, 4 * self.d)
            spectrum = Spectrum.of(context.x, context.y)
            for name, kept in self.filters(arm.noise).items():
                theirs = spectrum.weights(kept)[..., -1, :]
                found[name] = (mine - theirs).square().sum(-1).mean(-1)
                results.over_x(name, "ILWD", {k: found[name]}, self.seeds, "examples", str(arm))
        return found

    def _probe(self, results: Results, arm: Arm, model: Gpt2Learner, place: Workplace) -> None:
        """Moments X^T y / n and least squares' weights, read off every layer; off those of an untrained learner too.

        By a linear map, from the last token and the mean of the examples' answers; and, at the base size, by a small
        network, from a mean of all tokens with a weight for every position, as in the paper.
        """
        if arm.noise or arm.layers < 2:
            return
        untrained = Gpt2Learner(self.d, self.points, self.seeds, self.size_of(arm)).to(place.device)
        untrained.requires_grad_(False)
        base = arm.layers == self.layers and arm.width == self.width
        rows, streams = max(ROWS * arm.width, 2 * self.test), generators(self.seeds, 6, place.device)
        prompts = draw_prompts(LinearFunctions(self.d), rows, self.points, streams)
        wanted = looked_for(prompts)
        best: dict[tuple[str, str, str], Tensor] = {}
        for name, learner in (("trained", model), ("untrained", untrained)):
            states = summed_up_states_of(learner, prompts)
            found = {
                ("linear probe", quantity): torch.stack([probed(state, values) for state in states])
                for quantity, values in wanted.items()
            }
            if base:
                shares = read_by_networks(self._drawn(learner, place), self.probe_steps, 2 * self.test).cpu()
                for quantity, share in zip(wanted, shares, strict=True):
                    found["probe with a hidden layer", quantity] = share.view(len(states), -1)
            for (probe, quantity), by_layer in found.items():  # [layers, copies]
                series = quantity if probe == "linear probe" else f"{quantity}, hidden layer"
                results.over_x(series, "probed", dict(enumerate(by_layer)), self.seeds, "layer", f"{arm}: {name}")
                best[name, probe, quantity] = by_layer.max(0).values
        for probe, quantity in dict.fromkeys(key[1:] for key in best) if base else ():
            mine, none = best["trained", probe, quantity], best["untrained", probe, quantity]
            results.check(
                f"{arm}: a {probe} reads the {quantity} "
                "(0.8 of their variance, and over twice what it reads untrained)",
                f"{shown_mean(mine)}, untrained {shown_mean(none)}",
                encoded(mine, none),
            )

    def _drawn(self, learner: Gpt2Learner, place: Workplace) -> Draw:
        """Fresh prompts' states, layer by layer and copy by copy, and what is to be read off them."""

        def draw(number: int, tasks: int) -> tuple[Tensor, Tensor]:
            streams = generators(self.seeds, 7, place.device, number)
            prompts = draw_prompts(LinearFunctions(self.d), tasks, self.points, streams)
            layers = all_states_of(learner, prompts)
            wanted = torch.stack(list(looked_for(prompts).values())).to(layers)
            return layers.flatten(0, 1), wanted.repeat(1, len(layers), 1, 1)

        return draw


def looked_for(prompts: Prompts) -> dict[str, Tensor]:
    """What the examples before the last query come down to: [copies, tasks, d] each, float64, on the CPU."""
    spectrum = Spectrum.of_last(prompts.x, prompts.y)
    moments = spectrum.moments / (prompts.x.shape[-2] - 1)
    return {"moments": moments.squeeze(-2), "weights": spectrum.weights(least_squares).squeeze(-2)}
