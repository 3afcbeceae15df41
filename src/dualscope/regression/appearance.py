"""When in-context learning appears in training, and what the error is along the way."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dualscope.regression.results import Results
from dualscope.regression.training import Training

APPEARS = "step at which in-context learning appears"


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
    curve = training.curve(measure)
    for step, values in curve.items():
        results.over_seeds(series, measure, values, seeds, panel=panel, x_name="step", x=step)
    found = first_below(curve, level)
    for seed, first in zip(seeds, found, strict=True):
        if first is not None:
            results.add(series, APPEARS, first, panel=panel, x_name="step", x=first, seed=seed)
    return found


def arrived(curve: Mapping[int, Sequence[float]], within: float = 0.02, part: float = 0.2) -> bool:
    """Whether training has come to rest: over its last ``part`` no copy's curve fell by more than ``within`` of itself.

    The mean of the later half of that part is compared with that of the earlier half.

    >>> arrived({step: [1 / (1 + step)] for step in range(100)})
    False
    >>> arrived({step: [1.0 + 0.1**step] for step in range(100)})
    True
    """
    steps = sorted(curve)
    last = [curve[step] for step in steps if step >= steps[-1] * (1 - part)]
    if len(last) < 4:
        return False
    half = len(last) // 2
    for copy in range(len(last[0])):
        before = sum(values[copy] for values in last[:half]) / half
        after = sum(values[copy] for values in last[half:]) / (len(last) - half)
        if not after >= before * (1 - within):
            return False
    return True


def when_equal(
    losses: Mapping[float, float], others: Mapping[float, float], level: float
) -> tuple[float, float]:
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
