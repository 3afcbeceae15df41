"""Fu et al. 2024: do a trained transformer's layers advance like Newton's iterations, or like gradient descent's?"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dualscope.regression.baselines import Spectrum, gradient_descent, least_squares, newton, online_gradient_descent
from dualscope.regression.emergence import APPEARS, LEVEL, check_appeared, check_rests, first_below
from dualscope.regression.experiment import EXPERIMENTS, PromptExperiment
from dualscope.regression.probes import fit_probe, read_probe
from dualscope.regression.problems import LinearFunctions, Prompts, draw_prompts, generators
from dualscope.regression.results import Results, shown_mean
from dualscope.regression.training import ALL, LONGEST, Workplace, states_of

NEWTON, DESCENT, ONLINE = "Newton", "gradient descent", "online gradient descent"
SIMILARITY = "cosine of errors"
MATCH, NEARNESS = "best match", "cosine at the best match"  # of each layer


@EXPERIMENTS.register("newton")
class Newton(PromptExperiment):
    """One GPT-2 for well-conditioned and one for ill-conditioned inputs; a linear read-out of every layer; each
    layer's guesses against the iterates of three algorithms, by the cosine of their errors along a prompt.
    """

    summary: ClassVar[str] = "layers against iterations of Newton, GD and online GD, well- and ill-conditioned"

    conditions: tuple[float, ...] = (1.0, 100.0)  # ratio of the largest to the smallest variance of inputs
    layers: int = 6
    curriculum: int = 500
    test: int = 256  # prompts a seed to fit the read-outs on, and as many to compare on
    newton_steps: int = 28
    descent_steps: tuple[int, ...] = tuple(sorted({round(2 ** (i / 2)) for i in range(29)}))  # 1 ... 16384
    passes: tuple[int, ...] = (1, 2, 3, 4, 6, 8)

    @property
    def trainings(self) -> int:
        return len(self.conditions)

    def carry_out(self, results: Results, place: Workplace) -> None:
        for condition in self.conditions:
            self._one(results, condition, place)

    def _one(self, results: Results, condition: float, place: Workplace) -> None:
        functions = LinearFunctions(self.d, condition=condition)
        panel = f"condition {condition:g}"
        own = place.of(f"condition-{condition:g}")
        learned, _ = self.trained(results, functions, own, "transformer", f"training: {panel}", panel)
        fit = draw_prompts(functions, self.test, self.points, generators(self.seeds, 3, place.device))
        test = draw_prompts(functions, self.test, self.points, generators(self.seeds, 4, place.device))
        layers = read_layers(states_of(learned.model, fit), fit, states_of(learned.model, test))
        self._compare(results, panel, layers, test)

    def _compare(self, results: Results, panel: str, layers: list[Tensor], test: Prompts) -> None:
        spectrum = Spectrum.of(test.x, test.y)
        target = test.target.cpu().double()
        iterates: dict[str, dict[int, Tensor]] = {
            NEWTON: {t: spectrum.predict(newton(t)) for t in range(self.newton_steps + 1)},
            DESCENT: {t: spectrum.predict(gradient_descent(1.0, t)) for t in self.descent_steps},
            ONLINE: {p: online_gradient_descent(test.x, test.y, 1.0, p) for p in self.passes},
        }
        exact = spectrum.predict(least_squares)
        missed = {layer: (guess - target)[..., 1:].square().mean((1, 2)) for layer, guess in enumerate(layers)}
        results.over_x("read-out", "squared error by layer", missed, self.seeds, "layer", panel)
        least = (exact - target)[..., 1:].square().mean((1, 2))
        last = {len(layers) - 1: least}
        results.over_x("least squares", "squared error by layer", last, self.seeds, "layer", panel)
        for name, of in iterates.items():
            numbers = list(of)
            # [layers, iterates, seeds]
            grid = torch.stack([torch.stack([likeness(g - target, i - target) for i in of.values()]) for g in layers])
            for layer, values in enumerate(grid):
                by_iterate = dict(zip(numbers, values, strict=True))
                results.over_x(f"layer {layer}", SIMILARITY, by_iterate, self.seeds, "iteration", f"{panel}: {name}")
            value, at = grid.max(1)  # [layers, seeds]
            best = torch.tensor(numbers, dtype=torch.float64)[at]
            for layer in range(len(layers)):
                where = {"panel": panel, "x_name": "layer", "x": layer}
                results.over_seeds(name, MATCH, best[layer], self.seeds, **where)
                results.over_seeds(name, NEARNESS, value[layer], self.seeds, **where)

    def conclude(self, results: Results) -> None:
        for condition in self.conditions:
            panel = f"condition {condition:g}"
            self._judge_training(results, panel)
            self._judge_layers(results, panel)
        about = "A cell is the mean over prompts of the cosine between two learners' errors along the prompt."
        results.figure(SIMILARITY, "Layers against iterations", about=about, kind="heat map")
        reads = (
            "The axis is logarithmic: a line that is straight here grows by a factor from layer to layer, as gradient "
            "descent's does, and one that flattens by as many iterations, as the claim has it of Newton's."
        )
        results.figure(MATCH, "The iteration nearest to each layer", log_y=True, reads=reads)
        reads = "1 is the same error on every prompt. How near it is does not tell the algorithms apart."
        results.figure(NEARNESS, "How near it is", reads=reads)
        reads = "The claim is borne out where layers fall step by step to least squares."
        results.figure("squared error by layer", "What each layer knows", log_y=True, reads=reads)
        results.figure(LONGEST, "Error in training, longest prompt", marks=APPEARS, log_y=True)
        results.figure(ALL, "Error in training, all lengths", log_y=True)

    def _judge_training(self, results: Results, panel: str) -> None:
        curves = {}
        for measure in (LONGEST, ALL):
            seeds = results.curves("transformer", measure, f"training: {panel}")
            steps = next(iter(seeds.values()))
            curves[measure] = {int(step): [of[step] for of in seeds.values()] for step in steps}
        check_appeared(results, panel, first_below(curves[LONGEST], LEVEL))
        check_rests(results, panel, curves[ALL], curves[LONGEST])

    def _judge_layers(self, results: Results, panel: str) -> None:
        """Of every seed the values from the embedding (layer 0) to the last layer."""
        match = {name: _by_seed(results, name, MATCH, panel) for name in (NEWTON, DESCENT, ONLINE)}
        near = {name: _by_seed(results, name, NEARNESS, panel) for name in match}
        later = (self.layers + 1) // 2  # the middle one is among them
        lowest = {name: values[:, later:].min(1).values for name, values in near.items()}
        results.check(
            f"{panel}: the later half of the layers match a Newton iterate with cosine >= 0.95",
            f"layers {later} to {self.layers}: at least {shown_mean(lowest[NEWTON])}",
            bool((lowest[NEWTON] >= 0.95).all()),
        )
        straight, bent = (torch.stack([straightness(one) for one in match[name]]) for name in (NEWTON, DESCENT))
        results.check(
            f"{panel}: the matched Newton iteration grows linearly with the layer (r >= 0.95)",
            f"r = {shown_mean(straight)}",
            bool((straight >= 0.95).all()),
        )
        ratio = match[DESCENT][:, -1] / match[NEWTON][:, -1].clamp(min=1)
        results.check(
            f"{panel}: not like GD's: the last layer needs more than 10 times as many GD steps, and they do not grow "
            "linearly (r < 0.95)",
            f"{shown_mean(ratio)} times, r = {shown_mean(bent)}",
            bool((ratio > 10).all() and (bent < 0.95).all()),
        )
        rows = [
            (name, *(shown_mean(of) for of in (match[name][:, -1], near[name][:, -1], lowest[name]))) for name in match
        ]
        columns = ("algorithm", "match of the last layer", "cosine there", "lowest cosine, later half of layers")
        results.table(f"{panel}: which iterate is each layer nearest to", columns, rows)


def _by_seed(results: Results, series: str, metric: str, panel: str) -> Tensor:
    """[seeds, layers]."""
    found = results.curves(series, metric, panel)
    return torch.tensor([list(found[seed].values()) for seed in sorted(found)], dtype=torch.float64)


def read_layers(fit: Sequence[Tensor], prompts: Prompts, states: Sequence[Tensor]) -> list[Tensor]:
    """Each layer's guesses [copies, tasks, points] through a linear read-out of its own, fitted on other prompts."""
    wanted = prompts.target.cpu().flatten(1, 2).unsqueeze(-1)
    found = []
    for seen, asked in zip(fit, states, strict=True):
        probe = fit_probe(seen.flatten(1, 2), wanted)
        found.append(read_probe(asked.flatten(1, 2), probe).view(asked.shape[:3]))
    return found


def likeness(first: Tensor, second: Tensor) -> Tensor:
    """Mean over prompts of the cosine between two learners' errors along the prompt, the first point left out,
    because no learner has seen an example there: [copies, tasks, points] each -> [copies].
    """
    return torch.cosine_similarity(first[..., 1:], second[..., 1:], dim=-1).mean(-1)


def straightness(matched: Tensor) -> Tensor:
    """The correlation of layer number and matched iteration, from the first layer that has left iteration 0 or the
    start on; 0 where nothing moves.
    """
    moving = (matched > matched.min()).nonzero()
    if not len(moving):
        return torch.tensor(0.0, dtype=matched.dtype)
    kept = matched[max(0, int(moving[0]) - 1) :]
    layers = torch.arange(len(kept), dtype=matched.dtype)
    if len(kept) < 3 or float(kept.std()) == 0:
        return torch.tensor(0.0, dtype=matched.dtype)
    return torch.corrcoef(torch.stack([layers, kept]))[0, 1]
