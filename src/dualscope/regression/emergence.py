"""When in-context learning appears in training, and what the error is along the way."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from dualscope.regression.results import Results
from dualscope.regression.training import Training

LEVEL = 0.75  # of the targets' variance: below it prompts teach
APPEARS = "step at which in-context learning appears"
# By what share of themselves curves at rest may fall. The loss is what is minimised, and the best learner there is
# bounds it. Where answers have no noise, nothing but zero bounds the error with the longest prompt: one that falls with
# a power of the steps rests by no rule that is relative to itself.
LOSS_WITHIN, ERROR_WITHIN = 0.02, 0.05
LOSS_RESTS = f"the loss in training has come to rest ({100 * LOSS_WITHIN:g} %)"
ERROR_RESTS = f"the error with the longest prompt has come to rest ({100 * ERROR_WITHIN:g} %)"


def first_below(curve: Mapping[int, Sequence[float]], level: float) -> list[int | None]:
    """For every copy, the first step from which its curve stays at or below ``level``; None where it never does.

    >>> first_below({0: [1.0, 1.0], 10: [0.4, 0.9], 20: [0.6, 0.8], 30: [0.3, 0.9]}, 0.5)
    [30, None]
    """
    steps = sorted(curve)
    found: list[int | None] = []
    for copy in range(len(curve[steps[0]])):
        above = [step for step in steps if not curve[step][copy] <= level]
        later = [step for step in steps if not above or step > above[-1]]
        found.append(later[0] if later else None)
    return found


def note_training(
    results: Results,
    training: Training,
    measure: str,
    level: float,
    series: str,
    seeds: Sequence[int],
    panel: str = "training",
) -> list[int | None]:
    """Rows of the curve, and of the step at which each seed's falls to ``level`` for good, which are returned."""
    note_curve(results, training, measure, series, seeds, panel)
    found = first_below(training.curve(measure), level)
    for seed, first in zip(seeds, found, strict=True):
        if first is not None:
            results.add(series, APPEARS, first, panel=panel, x_name="step", x=first, seed=seed)
    return found


def note_curve(
    results: Results, training: Training, measure: str, series: str, seeds: Sequence[int], panel: str = "training"
) -> None:
    """Rows of a measure that was watched."""
    results.over_x(series, measure, training.curve(measure), seeds, "step", panel)


def falls(curve: Mapping[int, Sequence[float]], part: float = 0.2) -> list[float]:
    """By what share of itself each copy's curve fell over its last ``part``: the mean of the later half of that part
    beside that of the earlier half. Not a number, where it has too few points to say.

    >>> [round(fall, 3) for fall in falls({step: [2.0, 9.0 if step < 90 else 8.1] for step in range(101)})]
    [0.0, 0.1]
    >>> falls({0: [1.0], 10: [1.0]})
    [nan]
    """
    steps = sorted(curve)
    last = [curve[step] for step in steps if step >= steps[-1] * (1 - part)]
    if len(last) < 4:
        return [math.nan] * len(last[0])
    half = len(last) // 2
    means = [[sum(copy) / len(copy) for copy in zip(*some, strict=True)] for some in (last[:half], last[half:])]
    return [1 - after / before if before else 0.0 for before, after in zip(*means, strict=True)]


def arrived(curve: Mapping[int, Sequence[float]], within: float = LOSS_WITHIN, part: float = 0.2) -> bool:
    """Whether training has come to rest: over its last ``part`` no copy's curve fell by more than ``within`` of itself.

    >>> arrived({step: [1 / (1 + step)] for step in range(100)})
    False
    >>> arrived({step: [1.0 + 0.1**step] for step in range(100)})
    True
    """
    return all(fall <= within for fall in falls(curve, part))


def check_appeared(results: Results, name: str, appeared: Sequence[int | None]) -> None:
    """That in-context learning appears in every seed; ``appeared`` are the steps at which it does."""
    seen = [step for step in appeared if step is not None]
    results.check(
        f"{name}: in-context learning appears in every seed",
        f"{len(seen)} of {len(appeared)} seeds" + (f", from step {min(seen)}" if seen else ""),
        len(seen) == len(appeared),
    )


def check_rest(results: Results, claim: str, curve: Mapping[int, Sequence[float]], within: float = LOSS_WITHIN) -> None:
    """That a training's curve has come to rest; where it has not, by how much each seed's still falls.

    >>> results = Results("demo")
    >>> check_rest(results, "the loss rests", {step: [1.0, 0.9**step] for step in range(21)})
    >>> results.checks[0].found
    'still falls, by 0.0 and 23.0 % of itself'
    """
    found = falls(curve)
    by = [f"{100 * fall:.1f}" for fall in found]
    several = " and ".join(filter(None, [", ".join(by[:-1]), by[-1]]))
    rested = arrived(curve, within)
    falling = "too few points to say" if math.isnan(sum(found)) else f"still falls, by {several} % of itself"
    results.check(claim, "yes" if rested else falling, rested)


def check_rests(
    results: Results, name: str, losses: Mapping[int, Sequence[float]], errors: Mapping[int, Sequence[float]]
) -> None:
    """That a training on prompts has come to rest, by both rules."""
    check_rest(results, f"{name}: {LOSS_RESTS}", losses)
    check_rest(results, f"{name}: {ERROR_RESTS}", errors, ERROR_WITHIN)


def when_equal(losses: Mapping[float, float], others: Mapping[float, float], level: float) -> tuple[float, float]:
    """The step at which a curve first falls to ``level``, between measured steps, and another curve's value there.

    >>> when_equal({0: 1.0, 100: 0.5, 200: 0.1}, {0: 9.0, 100: 5.0, 200: 1.0}, 0.75)
    (50.0, 7.0)
    """
    steps = sorted(losses)
    for before, step in pairwise(steps):
        if losses[step] <= level:
            share = min(1.0, max(0.0, (losses[before] - level) / max(losses[before] - losses[step], 1e-30)))
            return before + share * (step - before), others[before] + share * (others[step] - others[before])
    return float(steps[-1]), others[steps[-1]]
