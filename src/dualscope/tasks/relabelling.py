"""Relabellings: the labels permuted among the demonstrations so that an exact number of them differ. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dualscope.core.errors import InputError
from dualscope.core.words import LEVELS, Level

FEWEST_DRAWS = 8
JUDGED_STREAM, SPARE_STREAM = 20, 22  # of random numbers: the draws of the verdict, and others to choose settings on
_TRIES = 2000  # for one more distinct draw


def relabellings(
    labels: Sequence[int], count: int, seed: int, stream: int = JUDGED_STREAM
) -> list[tuple[Level, list[int]]]:
    """So many different ones, none of them the labels as they are: each a level, and the places to take labels from.

    ``stream`` names the draws: those of one stream say nothing of another's.

    >>> [level for level, _ in relabellings([0, 1] * 4, 8, seed=0)].count("chance")
    4

    Raises:
        InputError: Fewer than 8 draws, or the labels do not allow so many different ones.
    """
    if count < FEWEST_DRAWS:
        raise InputError(
            f"relabel: {count} draws were asked for, and a comparison of responses needs at least {FEWEST_DRAWS}"
        )
    classes = len(set(labels))
    if len(labels) < 3 or classes < 2:
        raise InputError(
            f"labels cannot be permuted among {len(labels)} demonstration{'s' * (len(labels) != 1)} of "
            f"{classes} class{'es' * (classes != 1)}; take more shots, and balanced ones"
        )
    found: list[tuple[Level, list[int]]] = []
    taken: set[tuple[int, ...]] = {tuple(labels)}
    for number, level in enumerate(LEVELS):
        wanted = count - count // 2 if number == 0 else count // 2
        differences = differences_of(labels, level)
        rng = np.random.default_rng([seed, stream, number])
        for _ in range(wanted):
            places = another(labels, differences, rng, taken)
            if places is None:
                raise InputError(
                    f"{len(labels)} demonstrations allow only {len(found)} different relabellings of the kind that is "
                    f"needed, and {count} were asked for; take more shots, or fewer draws"
                )
            taken.add(tuple(labels[place] for place in places))
            found.append((level, places))
    return found


def expected_differences(labels: Sequence[int]) -> float:
    """How many places a random permutation of the labels changes on average: n - sum m_c^2 / n.

    >>> expected_differences([0, 0, 1, 1]), expected_differences([0, 0, 0, 1])
    (2.0, 1.5)
    """
    n = len(labels)
    return n - sum(count**2 for count in Counter(labels).values()) / n


def differences_of(labels: Sequence[int], level: Level) -> int:
    """How many labels a draw of this level changes: the feasible number that is nearest to the level's share.

    With two classes each change takes a partner, so the number is even.

    >>> differences_of([0] * 8 + [1] * 8, "chance"), differences_of([0] * 8 + [1] * 8, "half")
    (8, 4)
    """
    counts = Counter(labels)
    n, largest = len(labels), max(counts.values())
    most = min(n, 2 * (n - largest))
    feasible = range(2, most + 1, 2) if len(counts) == 2 else range(2, most + 1)
    wanted = expected_differences(labels) * (1.0 if level == "chance" else 0.5)
    return min(feasible, key=lambda number: (abs(number - wanted), number))


def another(
    labels: Sequence[int], differences: int, rng: np.random.Generator, taken: set[tuple[int, ...]]
) -> list[int] | None:
    """Places to take the labels from, so that exactly so many differ and the labelling is a new one."""
    n = len(labels)
    for _ in range(_TRIES):
        moved = rng.choice(n, differences, replace=False)
        source = _deranged([labels[i] for i in moved], rng)
        if source is None:
            continue
        places = list(range(n))
        for place, taken_from in zip(moved, source, strict=True):
            places[place] = int(moved[taken_from])
        if tuple(labels[i] for i in places) not in taken:
            return places
    return None


def _deranged(labels: Sequence[int], rng: np.random.Generator) -> list[int] | None:
    """A permutation that changes every label; None where one class has more than half of them, or none was met."""
    n = len(labels)
    if 2 * max(Counter(labels).values()) > n:
        return None
    order = rng.permutation(n)
    for _ in range(50 * n):
        fixed = [i for i in range(n) if labels[order[i]] == labels[i]]
        if not fixed:
            return [int(i) for i in order]
        one, other = rng.choice(fixed), rng.integers(n)
        order[one], order[other] = order[other], order[one]
    return None
