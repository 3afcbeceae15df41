"""The project's words, where code has to spell them: variants, roles, controls, the choices of an episode, and the
ways to compute a likeness.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

Variant = Literal["trained", "untrained", "trained-embeddings", "shuffled"]
Role = Literal["baseline", "reference", "hypothesis", "ceiling", "null"]
"""What a learner is to the question. A hypothesis claims to be what in-context learning is, and never sees in-context
learning's own traces of the queries; a ceiling may; a null teaches nothing; the baseline is zero-shot, the reference
in-context learning itself."""
Control = Literal["redraw", "reorder", "random-labels", "other-task", "unlabelled", "random-update", "places"]
Level = Literal["chance", "half"]
"""How many labels a relabelling changes: as many as a random permutation would, or half as many."""
Family = Literal["gradient", "shallow", "vector", "bayes"]
"""What kind of mechanism a hypothesis proposes. Answers of one family overlap; outputs tell its members apart."""
DemoLabels = Literal["gold", "flipped", "random", "abstract"]
Corrupt = Literal["both", "icl", "gd"]
ReadAt = Literal["prompt-end", "first-label"]
GdDemonstrations = Literal["same", "all"]
GdOrder = Literal["same", "own"]
"""Whether gradient learners see the demonstrations in the context's order. ``own``: where that is another than the one
drawn, they have another one again, as in the published code."""
Precision = Literal["float64", "float32", "tf32", "bfloat16", "float16"]
AskedPrecision = Literal["auto"] | Precision
"""``auto``: float64 for a small model on a CPU, else float32."""
Subset = Literal["all", "f2t"]
"""Which queries metrics of attention are over; ``f2t``: those that both learners turn from wrong to right."""
AdapterMode = Literal["merged", "active"]
"""Whether a LoRA adapter is added to the weights, or stays a path of its own beside them."""

JUDGED = "relabel"
"""The one intervention that the verdict judges: its draws are exchangeable, so that re-pairing them is a test."""
ADAPTER_MODES: tuple[AdapterMode, ...] = get_args(AdapterMode)
ORDERS = 3
"""Permutations of the places in which in-context learning is read again, to see how reproducible its response is."""
PLACE_SETS = 4
"""Sets of other inputs behind which its labels are read in the same places, to see what is copied."""
LEVELS: tuple[Level, ...] = get_args(Level)
VARIANTS: tuple[Variant, ...] = get_args(Variant)
ROLES: tuple[Role, ...] = get_args(Role)
CONTROL_ROLES: dict[Control, Role] = {
    "redraw": "ceiling",
    "reorder": "ceiling",
    "random-labels": "null",
    "other-task": "null",
    "unlabelled": "null",
    "random-update": "null",
    "places": "null",
}
"""A learner under a control has the control's role: the same again is a ceiling, the wrong thing taught is a null."""


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
