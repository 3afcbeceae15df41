"""What a metric returns: numbers per query, sums over queries, or numbers that no query has a part in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dualscope.core.spec import LearnerSpec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class PerQuery:
    """One number per query, and per layer and head where the metric has them; the value is their mean.

    NaN is left out: of a share of some queries, all others are NaN. With `weights` the value is
    sum(values) / sum(weights) instead.
    """

    metric: str
    values: Tensor  # [queries], [queries, layers] or [queries, layers, heads]
    reference: LearnerSpec | str | None = None  # another learner, or what else the number is of (a label word)
    weights: Tensor | None = None  # the same shape
    over_layers: Literal["mean", "min", "none"] = "mean"  # how layers make the aggregate row
    scale: float = 1.0  # for counts: the number of queries


@dataclass(frozen=True)
class Pooled:
    """A number that only all queries together have: `combine` makes it from sums over the queries.

    Given as sums, so that a resample of the queries costs one matrix product.
    """

    metric: str
    parts: Tensor  # [queries, parts]
    combine: Callable[[np.ndarray], np.ndarray]  # [..., parts] of sums -> [...]
    reference: LearnerSpec | str | None = None  # another learner, or what else the number is of (a label word)


@dataclass(frozen=True)
class Logged:
    """Numbers of the learning itself, no queries and so no interval."""

    metric: str
    values: Tensor  # [], [layers] or [steps, layers]
    reference: LearnerSpec | str | None = None  # another learner, or what else the number is of (a label word)


@dataclass(frozen=True)
class PerHead:
    """Numbers of heads on samples of their own, which are not the queries; the value of a head is their mean."""

    metric: str
    values: Tensor  # [samples, layers, heads]
    reference: LearnerSpec | str | None = None


Values = PerQuery | Pooled | PerHead | Logged
