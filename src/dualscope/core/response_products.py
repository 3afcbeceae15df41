"""Inner products of responses: all that findings need to compare two learners' responses, and to re-pair them.

R is the reference's response, S the learner's, P that of in-context learning to the same labels in the same places
behind other inputs: what copying labels by their place would do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dualscope.core.words import Level

Part = Literal["answers", "outputs"]
PLACES = "places"
OWN = "own"
REPRODUCIBLE = 0.2  # the mean correlation of copying with itself, above which it is taken out
LEFT = 0.05  # the share of a response that has to be left once copying is taken out


def plant_name(label: str) -> str:
    """What rows call the reference in which a learner was planted."""
    return f"plant:{label}"


@dataclass(frozen=True)
class Products:
    """Of R and S: ``draws[k, l]`` is <R_k, S_l> over all queries, ``queries[q, p]`` is <R(q), S(p)> over all draws."""

    draws: np.ndarray  # [draws, draws]
    queries: np.ndarray  # [queries, queries]
    reference: float  # sum |R|^2
    own: float  # sum |S|^2

    @property
    def total(self) -> float:
        """sum <R, S>, every draw with itself."""
        return float(np.trace(self.draws))

    @property
    def correlation(self) -> float:
        """r = sum <R, S> / sqrt(sum |R|^2 sum |S|^2)."""
        return float(correlation(self.total, self.reference, self.own))


def correlation(product: Any, reference: Any, own: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        below = np.sqrt(np.asarray(reference, float) * np.asarray(own, float))
        found: np.ndarray = np.where(below > 0, np.asarray(product, float) / below, np.nan)
    return found


@dataclass(frozen=True)
class Copying:
    """What is known of copying in an episode: P with S (the mean of the sets of inputs), and P with R and itself."""

    with_own: Products  # P in the place of R
    with_reference: float  # sum <R, P>
    size: float  # mean over pairs of sets of <P_i, P_j>: |P|^2 without the noise of its inputs
    agreement: float  # mean over pairs of sets of r(P_i, P_j)

    @property
    def is_reproducible(self) -> bool:
        """Whether there is any copying to take out: where sets of inputs do not agree, P is noise."""
        return self.agreement > REPRODUCIBLE and self.size > 0


def given_copying(product: Any, own_copying: Any, products: Products, copying: Copying | None) -> np.ndarray:
    """r of what is left of R and S once the part along P is taken out of both; r itself where nothing is copied.

    ``product`` is sum <R, S> and ``own_copying`` sum <S, P>, for the draws and queries as they were paired or as they
    were re-paired: numbers, or arrays of them. Where copying is all of R's response, or all of S's, the answer is 0;
    where one of them has no response, NaN.
    """
    product = np.asarray(product, float)
    if copying is None or not copying.is_reproducible or not products.reference * products.own > 0:
        return correlation(product, products.reference, products.own)
    along = np.asarray(own_copying, float)
    size, known = copying.size, copying.with_reference
    left_reference = products.reference - known**2 / size
    left_own = products.own - along**2 / size
    if not left_reference > LEFT * products.reference:
        return np.zeros_like(product)
    found = correlation(product - known * along / size, left_reference, np.maximum(left_own, 0.0))
    found = np.where(left_own > LEFT * products.own, found, 0.0)
    clipped: np.ndarray = np.clip(found, -1.0, 1.0)
    return clipped


@dataclass(frozen=True)
class ComparedPart:
    """Two learners' responses in one part (the answers, or the outputs of a layer), with what copying would do."""

    reference: str
    part: Part
    layer: int | None
    products: Products
    copying: Copying | None = None
    weight: float = 1.0  # R's learned share there: what layers are weighted by

    @property
    def plain(self) -> float:
        return self.products.correlation

    @property
    def given_copying(self) -> float:
        own = 0.0 if self.copying is None else self.copying.with_own.total
        return float(given_copying(self.products.total, own, self.products, self.copying))


def weighted(values: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """The mean over the first axis (layers) by weight, layers without a value left out; NaN where none has one."""
    values, own = np.asarray(values, float), np.clip(np.asarray(weights, float), 0.0, None)
    own = own.reshape(-1, *[1] * (values.ndim - 1)) * np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = np.where(np.isfinite(values), values, 0.0).__mul__(own).sum(0) / own.sum(0)
    return found


SCHEMA = pa.schema(
    [
        ("reference", pa.string()),
        ("part", pa.string()),
        ("layer", pa.int64()),
        ("weight", pa.float64()),
        ("reference_size", pa.float64()),
        ("own_size", pa.float64()),
        ("draws", pa.list_(pa.float64())),
        ("queries", pa.list_(pa.float32())),
        ("copying_draws", pa.list_(pa.float64())),
        ("copying_queries", pa.list_(pa.float32())),
        ("copying_with_reference", pa.float64()),
        ("copying_size", pa.float64()),
        ("copying_agreement", pa.float64()),
    ]
)
_LEVELS = b"levels"


def table_of(parts: Iterable[ComparedPart], levels: Sequence[Level | None]) -> pa.Table:
    """What a response cell stores: a row a part."""
    rows = [_row(part) for part in parts]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    return table.replace_schema_metadata({_LEVELS: json.dumps(list(levels))})


def _row(part: ComparedPart) -> dict[str, Any]:
    products, copying = part.products, part.copying
    return {
        "reference": part.reference,
        "part": part.part,
        "layer": part.layer,
        "weight": part.weight,
        "reference_size": products.reference,
        "own_size": products.own,
        "draws": products.draws.ravel(),
        "queries": products.queries.ravel().astype(np.float32),
        "copying_draws": None if copying is None else copying.with_own.draws.ravel(),
        "copying_queries": None if copying is None else copying.with_own.queries.ravel().astype(np.float32),
        "copying_with_reference": None if copying is None else copying.with_reference,
        "copying_size": None if copying is None else copying.size,
        "copying_agreement": None if copying is None else copying.agreement,
    }


def parts_of(table: pa.Table) -> tuple[list[ComparedPart], tuple[Level | None, ...]]:
    """What `table_of` wrote: the parts, and the level of every draw.

    Raises:
        pa.ArrowInvalid: The table is no cell's responses.
    """
    if not set(SCHEMA.names) <= set(table.column_names) or _LEVELS not in (table.schema.metadata or {}):
        raise pa.ArrowInvalid("not a cell's responses: columns are missing")
    levels = json.loads(table.schema.metadata[_LEVELS])
    found = []
    for row in table.to_pylist():
        products = Products(_square(row["draws"]), _square(row["queries"]), row["reference_size"], row["own_size"])
        copying = None
        if row["copying_draws"] is not None:
            beside = Products(_square(row["copying_draws"]), _square(row["copying_queries"]), math.nan, row["own_size"])
            copying = Copying(beside, row["copying_with_reference"], row["copying_size"], row["copying_agreement"])
        found.append(ComparedPart(row["reference"], row["part"], row["layer"], products, copying, row["weight"]))
    return found, tuple(levels)


def _square(values: Sequence[float] | None) -> np.ndarray:
    if values is None:
        raise pa.ArrowInvalid("not a cell's responses: products are missing")
    side = math.isqrt(len(values))
    if side * side != len(values):
        raise pa.ArrowInvalid(f"not a cell's responses: {len(values)} products are no square")
    return np.array(values, float).reshape(side, side)


def geometry_matrix(reference: np.ndarray, own: np.ndarray, levels: Sequence[Level | None]) -> np.ndarray:
    """How alike two learners arrange the draws, whatever the directions: [layers of R, layers of S].

    From G[layer, k, l] = sum over queries <D_k, D_l> of each: the correlation of the entries off the diagonal (with it,
    unrelated responses score 1). Entries are centred within each pair of levels, since centring draws within levels
    makes them repel each other in every learner alike.
    """
    left, right = off_diagonal(reference, levels), off_diagonal(own, levels)
    return correlation(left @ right.T, (left**2).sum(-1)[:, None], (right**2).sum(-1)[None])


def off_diagonal(grams: np.ndarray, levels: Sequence[Level | None]) -> np.ndarray:
    """[layers, entries]: the entries above the diagonal, less the mean of their pair of levels."""
    rows, columns = np.triu_indices(grams.shape[-1], 1)
    entries = grams[:, rows, columns].astype(float)
    names = [str(level) for level in levels]
    pairs = ["-".join(sorted((names[int(i)], names[int(j)]))) for i, j in zip(rows, columns, strict=True)]
    kinds = np.array(pairs)
    for kind in dict.fromkeys(pairs):
        entries[:, kinds == kind] -= entries[:, kinds == kind].mean(1, keepdims=True)
    return entries
