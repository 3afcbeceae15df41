"""Values per layer, over the seeds, with their reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from dualscope.core.estimate import NORMAL, Estimate
from dualscope.core.statistics import ANYWHERE, Bounds
from dualscope.report.subject import Subject

Key = tuple[str, str, str, str, str | None]
"""task, variant, learner, metric, reference"""
Reach = tuple[float, float, float]
"""a value and the ends of its interval"""


@dataclass(frozen=True)
class Line:
    layers: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @property
    def points(self) -> list[tuple[int, float, float, float]]:
        """Layer, value and the ends of the interval."""
        return list(zip(self.layers, self.values, self.lows, self.highs, strict=True))

    @classmethod
    def over_seeds(cls, found: dict[int, dict[int, list[Reach]]], bounds: Bounds = ANYWHERE) -> Line:
        """By layer and seed; several cells of a seed (orders, draws of weights) are no further seeds."""
        layers = sorted(found)
        ends = [combine([mean(cells) for cells in found[layer].values()], bounds) for layer in layers]
        values, lows, highs = zip(*ends, strict=True) if ends else ((), (), ())
        return cls(tuple(layers), values, lows, highs)


def mean(cells: Sequence[Reach]) -> Reach:
    """Of cells that are not of different seeds: value by value and end by end."""
    value, low, high = (math.fsum(column) / len(cells) for column in zip(*cells, strict=True))
    return value, low, high


def combine(parts: Sequence[Reach], bounds: Bounds = ANYWHERE) -> Reach:
    """The mean over seeds of (value, low, high), with a 95 % interval that ends where the numbers do (``bounds``).

    The seeds' spread over the number of seeds, plus the variance within a seed (from its interval over queries), which
    is not divided: the same queries recur in every seed. One seed keeps its own interval.

    >>> combine([(0.5, 0.4, 0.7)])
    (0.5, 0.4, 0.7)
    >>> mean, low, high = combine([(0.4, 0.4, 0.4), (0.6, 0.6, 0.6)])
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.5, -0.771, 1.771)
    """
    there = [part for part in parts if not math.isnan(part[0])]
    if not there or any(math.isinf(part[0]) for part in there):  # a signal to noise of no noise at all
        return (there[0][0] if len(there) == 1 else math.inf if there else math.nan), math.nan, math.nan
    if len(there) == 1:
        return there[0]
    values, lows, highs = (np.array(column, float) for column in zip(*there, strict=True))
    within = ((highs - lows) / (2 * NORMAL)) ** 2
    within = within[np.isfinite(within)]
    found = Estimate.of_seeds(values, float(within.mean()) if len(within) else 0.0).interval.within(bounds)
    return found.mean, found.low, found.high


def layer_lines(subject: Subject) -> dict[Key, Line]:
    """Every metric that has layers, for the cells of the subject's setting."""
    from dualscope.metrics import bounds_of

    found: dict[Key, dict[int, dict[int, list[Reach]]]] = {}
    for name, cell in subject.cells.items():
        table = subject.source.table(name)
        kept = table.filter(pc.and_(pc.is_valid(table["layer"]), pc.is_null(table["step"])))
        columns = [kept[column].to_pylist() for column in ("metric", "reference", "layer", "value", "low", "high")]
        where = (cell.episode.task, cell.episode.model.variant, cell.learning.label)
        for metric, reference, layer, *numbers in zip(*columns, strict=True):
            value, low, high = (math.nan if n is None else n for n in numbers)
            line = found.setdefault((*where, metric, reference), {})
            line.setdefault(layer, {}).setdefault(cell.episode.seed, []).append((value, low, high))
    return {key: Line.over_seeds(layers, bounds_of(key[3])) for key, layers in found.items()}
