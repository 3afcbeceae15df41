"""The ways in which a likeness of attention outputs could as well have been computed: what else is reasonable."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

Dimensions = Literal["all", "without outliers", "standardised"]
"""Of a layer's output: all; without the hundredth whose zero-shot outputs are largest; each divided by how far
zero-shot's outputs vary over queries."""
LayerWeights = Literal["equal", "by ICL's change", "upper half"]
Centring = Literal["none", "over queries"]
Aggregate = Literal["mean", "median", "pooled"]
"""Over the queries of a layer: of their cosines, or one cosine of all changes put end to end."""


@dataclass(frozen=True)
class Specification:
    dimensions: Dimensions = "all"
    weights: LayerWeights = "equal"
    centring: Centring = "none"
    aggregate: Aggregate = "mean"

    @property
    def name(self) -> str:
        """As rows have it."""
        return f"{self.dimensions} | {self.weights} | {self.centring} | {self.aggregate}"


PAPERS = Specification()
"""That of `sim_aou`."""
SPECIFICATIONS = {
    one.name: one
    for one in (
        Specification(*choice)
        for choice in product(get_args(Dimensions), get_args(LayerWeights), get_args(Centring), get_args(Aggregate))
    )
}
