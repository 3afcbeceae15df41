"""Garg et al. 2022: which classes of functions can a transformer learn in context, and as well as what?"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from dualscope.regression.architectures.gpt2 import Gpt2Learner
from dualscope.regression.baselines import Spectrum, boost, errors, fit_networks, grow, lasso, least_squares, nearest
from dualscope.regression.emergence import APPEARS, LEVEL, check_appeared, check_rest
from dualscope.regression.experiment import EXPERIMENTS, PromptExperiment
from dualscope.regression.problems import (
    FEWER_THAN_D,
    SHIFTS,
    UNSHIFTED,
    DecisionTrees,
    FunctionClass,
    LinearFunctions,
    Prompts,
    SparseLinear,
    TwoLayerNetworks,
    draw_prompts,
    generators,
    stacked,
)
from dualscope.regression.results import Results, interval, shown, shown_mean
from dualscope.regression.training import ALL, LONGEST, Workplace, fast, guesses_of

# Prompts unlike those of training: the error there, and whether it is withstood.


TRANSFORMER, LEAST_SQUARES = "transformer", "least squares"
SHIFTED = "shifted error"


def note_shifts(
    results: Results,
    functions: LinearFunctions,
    model: Gpt2Learner,
    seeds: Sequence[int],
    test: int,
    most: int,
    device: torch.device,
) -> None:
    """The error for a query after d/4 ... 2 d (at most ``most``) examples, as a share of the targets' variance in
    that shift.
    """
    d, rows = functions.d, []
    for name, shift in SHIFTS.items():
        counts = sorted({max(1, d // 4), max(1, d // 2), d - 1, d, 2 * d})
        counts = [k for k in counts if k <= most and (name not in FEWER_THAN_D or k < d)]
        cells: dict[str, str] = {}
        for k in counts:
            prompts = stacked([shift(functions, test, k, g) for g in generators(seeds, 6, device)])
            variance = prompts.target[..., -1].square().mean(1).cpu()
            guesses = {
                TRANSFORMER: guesses_of(model, prompts)[..., -1],
                LEAST_SQUARES: Spectrum.of_last(prompts.x, prompts.y).predict(least_squares)[..., -1],
            }
            for learner, guess in guesses.items():
                error = (guess - prompts.target[..., -1].cpu()).square().mean(1) / variance
                where = {"panel": name, "x_name": "examples", "x": k}
                cells[learner] = shown(*results.over_seeds(learner, SHIFTED, error, seeds, **where))
        rows.append((name, str(counts[-1]), cells[TRANSFORMER], cells[LEAST_SQUARES]))
    title = "linear: error on prompts unlike those of training, as a share of the targets' variance"
    results.table(title, ("shift", "examples", TRANSFORMER, LEAST_SQUARES), rows)


def judge_shifts(results: Results, level: float) -> None:
    """A shift is withstood by a seed that has learned without it (error at most ``level``); one that has not bears
    nothing out. Least squares' own error is said beside it: noise is a shift that no learner gets over unharmed.
    """
    plain = _longest(results, UNSHIFTED, TRANSFORMER)
    for name in SHIFTS:
        if not plain or name == UNSHIFTED or name in FEWER_THAN_D:
            continue
        shifted, least = (_longest(results, name, learner) for learner in (TRANSFORMER, LEAST_SQUARES))
        borne = [seed for seed, error in shifted.items() if plain[seed] <= level and error <= 2 * plain[seed] + 0.05]
        means = " against ".join(shown_mean(list(of.values())) for of in (shifted, plain))
        results.check(
            f"linear, {name}: error at most twice that without a shift, and 0.05",
            f"{len(borne)} of {len(shifted)} seeds; {means}, least squares {shown_mean(list(least.values()))}",
            len(borne) == len(shifted),
        )


def _longest(results: Results, shift: str, learner: str) -> dict[int, float]:
    """seed -> a learner's error on the longest prompts of a shift."""
    curves = results.curves(learner, SHIFTED, shift)
    return {seed: curve[max(curve)] for seed, curve in curves.items()}


# The loss along a line through weight space: from where training began to where it ended, and beyond.


PLACES = tuple(i / 10 for i in range(-5, 16))  # 0 is the start, 1 is the end


@torch.no_grad()
def along(
    weights: Tensor, start: Tensor, end: Tensor, loss: Callable[[], Tensor], places: Sequence[float] = PLACES
) -> dict[float, Tensor]:
    """place -> loss [copies]; ``weights`` [copies, ...] is what ``loss`` reads, and is left as it was."""
    before = weights.detach().clone()
    found = {}
    try:
        for place in places:
            weights.copy_(start + place * (end - start))
            found[place] = loss().detach().cpu()
    finally:
        weights.copy_(before)
    return found


def note_landscape(
    results: Results,
    weights: Tensor,
    start: Tensor,
    loss: Callable[[], Tensor],
    series: str,
    seeds: Sequence[int],
    panel: str = "landscape",
) -> None:
    """Rows of the loss on the way from ``start`` to the weights as they are, and in a random direction of that length
    from where they ended, as a control.
    """
    end, begun = weights.detach().clone(), start.to(weights)
    turned = torch.stack(
        [torch.randn(one.shape, generator=g) for one, g in zip(end, generators(seeds, 7), strict=True)]
    )
    turned = turned.to(end)
    length = (end - begun).flatten(1).norm(dim=1) / turned.flatten(1).norm(dim=1)
    away = end - turned * length.view(-1, *[1] * (end.dim() - 1))
    for name, origin in ((series, begun), (f"{series}, random direction", away)):
        losses = along(weights, origin, end, loss)
        results.over_x(name, "loss along a line", losses, seeds, "start 0, end 1", panel)


FunctionName = Literal["linear", "sparse", "tree", "network"]
LASSO = "lasso"
GREEDY, BOOSTING, FITTED = "greedy tree", "gradient boosting", "network by Adam"
NEAREST = "3 nearest"
PATIENCE = {"sparse": 1.5, "network": 0.4}  # times as many steps: that weights are sparse is found late


@EXPERIMENTS.register("garg")
class Garg(PromptExperiment):
    """GPT-2 blocks trained on prompts of one class of functions, with a curriculum; then the squared error against
    the number of examples, beside what a statistician would use, and on prompts unlike those of training.
    """

    summary: ClassVar[str] = "function classes learned in context by GPT-2 blocks, beside the best learners we know"

    classes: tuple[FunctionName, ...] = get_args(FunctionName)
    long_points: int = 26  # of trees and networks; ``points`` are those of linear functions
    test: int = 512  # prompts a seed
    fits: int = 64  # prompts a seed for learners that are fitted one by one

    @property
    def trainings(self) -> int:
        return len(self.classes)

    @property
    def work(self) -> int:
        return sum(self.steps_of(name) for name in self.classes)

    def steps_of(self, name: FunctionName) -> int:
        return max(1, round(self.steps * PATIENCE.get(name, 1)))

    def functions(self, name: FunctionName) -> FunctionClass:
        if name == "linear":
            return LinearFunctions(self.d)
        if name == "sparse":
            return SparseLinear(self.d, min(3, self.d))
        return DecisionTrees(self.d) if name == "tree" else TwoLayerNetworks(self.d)

    def carry_out(self, results: Results, place: Workplace) -> None:
        for name in self.classes:
            points = self.points if name in ("linear", "sparse") else self.long_points
            self._one_class(results, name, self.functions(name), points, place)

    def _one_class(
        self, results: Results, name: FunctionName, functions: FunctionClass, points: int, place: Workplace
    ) -> None:
        learned, appeared = self.trained(
            results,
            functions,
            place.of(name),
            TRANSFORMER,
            f"training: {name}",
            name,
            points=points,
            steps=self.steps_of(name),
        )
        test = draw_prompts(functions, self.test, points, generators(self.seeds, 3, place.device))
        found = {TRANSFORMER: errors(guesses_of(learned.model, test), test)}
        found |= {other: errors(guess, test) for other, guess in simple_learners(test, name).items()}
        fitted = draw_prompts(functions, self.fits, points, generators(self.seeds, 4, place.device))
        for learner, curve in found.items():
            by_examples = {k: curve[:, k] for k in range(points)}
            results.over_x(learner, "squared error", by_examples, self.seeds, "examples", name)
        last = {learner: curve[:, -1] for learner, curve in found.items()}
        last |= self._fitted_learners(results, name, fitted, points)
        self._judge(results, name, found, last, points, learned.training.curve(ALL), appeared)
        shown_prompts = Prompts(*(part[:, :64] for part in (test.x, test.y, test.target)))

        def loss() -> Tensor:
            with fast(place.device):
                guesses = learned.model(shown_prompts.x, shown_prompts.y)
            found: Tensor = (guesses.float() - shown_prompts.target).square().mean((1, 2))
            return found

        note_landscape(results, learned.model.flat, learned.start, loss, TRANSFORMER, self.seeds, f"landscape: {name}")
        if isinstance(functions, LinearFunctions):
            most = self.points - 1
            note_shifts(results, functions, learned.model, self.seeds, self.test, most, place.device)

    def _fitted_learners(
        self, results: Results, name: FunctionName, prompts: Prompts, points: int
    ) -> dict[str, Tensor]:
        """Learners that are fitted to one prompt at a time, for some numbers of examples; the errors at the last."""
        if name not in ("tree", "network"):
            return {}
        last: dict[str, Tensor] = {}
        for k in sorted({max(2, round(share * (points - 1))) for share in (0.1, 0.2, 0.35, 0.5, 0.75, 1)}):
            x, y = prompts.x[..., :k, :].flatten(0, 1), prompts.y[..., :k].flatten(0, 1)
            query = prompts.x[..., k : k + 1, :].flatten(0, 1)
            if name == "tree":
                guesses = {GREEDY: grow(x, y, 4).predict(query), BOOSTING: boost(x, y, query)}
            else:
                (generator,) = generators([0], 5, x.device)
                guesses = {FITTED: fit_networks(x, y, query, generator)}
            for learner, guess in guesses.items():
                error = (guess.view(prompts.y.shape[:2]) - prompts.target[..., k]).square().mean(1).cpu()
                results.over_x(learner, "squared error", {k: error}, self.seeds, "examples", name)
                last[learner] = error
        return last

    def _judge(
        self,
        results: Results,
        name: FunctionName,
        found: dict[str, Tensor],
        last: dict[str, Tensor],
        points: int,
        losses: dict[int, list[float]],
        appeared: list[int | None],
    ) -> None:
        most = points - 1
        middle = max(1, self.d // 2)
        rows = [
            (learner, shown_mean(found[learner][:, middle]) if learner in found else "", shown_mean(values))
            for learner, values in last.items()
        ]
        title = f"{name}: squared error, mean over seeds [95 % interval]"
        results.table(title, ("learner", f"{middle} examples", f"{most} examples"), rows)
        mine = last[TRANSFORMER]
        said = shown_mean(mine)
        check_appeared(results, name, appeared)
        check_rest(results, f"{name}: training has come to rest", losses)
        if name == "linear":
            gap = (found[TRANSFORMER] - found[LEAST_SQUARES]).abs().mean(1)
            results.check(
                "linear: on average within 0.05 of least squares' error",
                shown_mean(gap),
                interval(gap.tolist())[0] <= 0.05,
            )
            results.check(f"linear: error at most 0.05 with {most} examples", said, float(mine.mean()) <= 0.05)
        elif name == "sparse":
            ours, plain, best = (found[key][:, middle] for key in (TRANSFORMER, LEAST_SQUARES, LASSO))
            results.check(
                f"sparse: below least squares with {middle} examples",
                f"{float(ours.mean()):.4f} against {float(plain.mean()):.4f}",
                bool((ours < plain).all()),
            )
            results.check(
                f"sparse: within 0.05 of the lasso's error with {middle} examples",
                f"{float(ours.mean()):.4f} against {float(best.mean()):.4f}",
                float(ours.mean()) <= float(best.mean()) + 0.05,
            )
        elif name == "tree":
            for other in (GREEDY, BOOSTING):
                results.check(
                    f"tree: below {other} with {most} examples",
                    f"{said} against {shown_mean(last[other])}",
                    bool((mine < last[other]).all()),
                )
        else:
            results.check(
                f"network: at most 1.1 times the error of a {FITTED} with {most} examples",
                f"{said} against {shown_mean(last[FITTED])}",
                float(mine.mean()) <= 1.1 * float(last[FITTED].mean()),
            )

    def conclude(self, results: Results) -> None:
        judge_shifts(results, LEVEL)
        # On trees and networks least squares errs a thousandfold where examples are as many as inputs.
        about = "1 is the variance of targets; what errs by more than 2.5 times that leaves the figure."
        reads = "The claim is borne out where the transformer's line is as low as that of the best other learner."
        title = "Error against the number of examples"
        results.figure("squared error", title, about=about, span=(0.0, 2.5), reads=reads)
        results.figure(LONGEST, "Error in training, longest prompt", marks=APPEARS, log_y=True)
        results.figure(ALL, "Error in training, all lengths", log_y=True)
        reads = "The claim is borne out where the transformer's line is about as low as without a shift."
        results.figure(SHIFTED, "Prompts unlike those of training", log_y=True, reads=reads)
        reads = "0 is the start of training and 1 its end; beside it a random direction of the same length."
        results.figure("loss along a line", "The loss from start to end of training", log_y=True, reads=reads)


def simple_learners(prompts: Prompts, name: FunctionName) -> dict[str, Tensor]:
    """The guesses of learners that have a closed form or nearly, at every number of examples."""
    found = {
        LEAST_SQUARES: Spectrum.of(prompts.x, prompts.y).predict(least_squares),
        NEAREST: nearest(prompts.x, prompts.y),
    }
    if name == "sparse":
        found[LASSO] = lasso(prompts.x, prompts.y, 0.01, sweeps=40)
    return found
