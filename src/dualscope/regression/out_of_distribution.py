"""Prompts unlike those of training: the error there, and whether it is withstood."""

from collections.abc import Sequence

import torch

from dualscope.regression.architectures.gpt2 import Gpt2Learner
from dualscope.regression.baselines.spectrum import Spectrum, least_squares
from dualscope.regression.problems.function_classes import generators
from dualscope.regression.problems.prompts import LinearFunctions, stacked
from dualscope.regression.problems.shifts import FEWER_THAN_D, SHIFTS, UNSHIFTED
from dualscope.regression.prompt_training import guesses_of
from dualscope.regression.results import Results, interval, shown

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
        means = " against ".join(shown(*interval(list(of.values()))) for of in (shifted, plain))
        results.check(
            f"linear, {name}: error at most twice that without a shift, and 0.05",
            f"{len(borne)} of {len(shifted)} seeds; {means}, least squares {shown(*interval(list(least.values())))}",
            len(borne) == len(shifted),
        )


def _longest(results: Results, shift: str, learner: str) -> dict[int, float]:
    """seed -> a learner's error on the longest prompts of a shift."""
    curves = results.curves(learner, SHIFTED, shift)
    return {seed: curve[max(curve)] for seed, curve in curves.items()}
