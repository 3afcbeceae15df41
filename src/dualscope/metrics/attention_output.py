"""How alike two changes of the attention output are. z, c, g: zero-shot, reference and learner.

The formulas take attn_out as [queries, layers, width] and return [queries, layers].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from dualscope.core.spec import ZERO_SHOT, LearnerSpec
from dualscope.core.statistics import COSINE, SIZE
from dualscope.core.words import SPECIFICATIONS, Centring, Dimensions, LayerWeights, Specification
from dualscope.metrics.case import Case, Logged, PerQuery, Values
from dualscope.metrics.cosine import cosine, layer_slices, unit, wide
from dualscope.metrics.metric import Function, by_layers, metric
from dualscope.models.reading.trace import Trace

ROUNDING = 1e-12  # of float64 sums over a width


def outputs(trace: Trace, layers: slice) -> Tensor:
    """Some layers' attention outputs in float64, on the trace's device also where they are kept in a file."""
    return wide(trace.attn_out[:, layers].to(trace.device))


def out_of_reach(case: Case) -> Tensor | None:
    """[queries]: those that fill layer 0's window, where positions are relative.

    No context changes that layer then, and the cosine would be of rounding, which has a direction of its own.
    """
    of_contexts = case.learned.by_context or case.against.learned.by_context
    if not case.relative_positions or case.zero_shot.first_window is None or not of_contexts:
        return None
    return case.zero_shot.lengths >= case.zero_shot.first_window


@dataclass(frozen=True)
class Outputs:
    """Some layers' attention outputs of zero-shot, the reference and the learner, and what else a formula may ask for
    by name. They are widened once here; `wide` in the formulas then has nothing left to do.
    """

    case: Case
    layers: slice

    @cached_property
    def z(self) -> Tensor:
        return outputs(self.case.zero_shot, self.layers)

    @cached_property
    def c(self) -> Tensor:
        return outputs(self.case.reference, self.layers)

    @cached_property
    def g(self) -> Tensor:
        return outputs(self.case.trace, self.layers)

    @property
    def bias(self) -> Tensor | None:
        return None if self.case.output_bias is None else self.case.output_bias[self.layers]

    @property
    def seed(self) -> int:
        return self.case.seed

    @property
    def first_layer(self) -> int:
        return int(self.layers.start)

    @property
    def direct(self) -> Tensor:
        return self.case.trace.extras["direct_attn_out"][:, self.layers].to(self.case.trace.device)

    @cached_property
    def nulls(self) -> dict[LearnerSpec, Tensor]:
        return {null.learning: outputs(null.trace, self.layers) for null in self.case.nulls}


def _by_layers(case: Case, formulas: Mapping[str, Function]) -> Iterator[PerQuery]:
    out = out_of_reach(case)
    for found in by_layers(case, formulas, (Outputs(case, at) for at in layer_slices(case.trace.attn_out))):
        if out is not None:
            found.values[out.to(found.values.device), 0] = torch.nan
        yield found


@metric(
    "change_norm",
    "|g.attn_out - z.attn_out| / |z.attn_out|",
    "size of the change of the attention output",
    applies=lambda case: not case.is_baseline and case.has_attention,
    within=SIZE,
)
def change_norm(case: Case) -> Values:
    chunks = []
    for at in layer_slices(case.zero_shot.attn_out):
        z, g = outputs(case.zero_shot, at), outputs(case.trace, at)
        chunks.append(torch.linalg.vector_norm(g - z, dim=-1) / torch.linalg.vector_norm(z, dim=-1))
    return PerQuery("change_norm", torch.cat(chunks, 1), ZERO_SHOT)


likeness = partial(
    metric,
    together=_by_layers,
    applies=lambda case: case.is_pair and case.has_attention and not case.learned.one_layer,
    within=COSINE,
)


@likeness(
    "sim_aou_above",
    "sim_aou over the layers above the one that the learner acts at",
    "likeness of the two changes where the learner can make one at all",
    applies=lambda case: case.is_pair and case.learned.one_layer,
)
@likeness(
    "sim_aou",
    "cos(c.attn_out - z.attn_out, g.attn_out - z.attn_out)",
    "likeness of the two changes: the primary metric",
    title="Attention outputs",
)
def sim_aou(z: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """Cosine of the two changes.

    >>> z, c, g = torch.zeros(1, 1, 2), torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 1.0]]])
    >>> sim_aou(z, c, g)
    tensor([[0.7071]], dtype=torch.float64)
    """
    z, c, g = wide(z), wide(c), wide(g)
    return cosine(c - z, g - z)


@likeness(
    "sim_aou_norm",
    "sim_aou of attn_out scaled to unit norm",
    "the older, biased metric: independent random updates score above 0",
    title="Attention outputs, scaled first",
)
def sim_aou_norm(z: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """The older metric, every output scaled to unit norm first: biased upwards, because both changes share -z."""
    z, c, g = unit(wide(z)), unit(wide(c)), unit(wide(g))
    return cosine(c - z, g - z)


def drawn(z: Tensor, seed: int, first_layer: int, draw: Callable[..., Tensor]) -> Tensor:
    """Random numbers in the place of outputs: [queries, layers, width]."""
    layers = []
    for layer in range(z.shape[1]):
        generator = torch.Generator(z.device)  # one a layer, so that chunks do not change the draw
        generator.manual_seed(int(np.random.SeedSequence([seed, 3, first_layer + layer]).generate_state(1)[0]))
        layers.append(draw(z[:, layer].shape, generator=generator, device=z.device, dtype=torch.float32).double())
    return torch.stack(layers, 1) if layers else z


@likeness("sim_aou_random", "cos(c - z, r), r ~ N(0, 1)", "baseline: a random direction in place of GD's update")
def sim_aou_random(z: Tensor, c: Tensor, seed: int, first_layer: int = 0) -> Tensor:
    """The reference's change against a random update, drawn anew for every query and layer."""
    z, c = wide(z), wide(c)
    return cosine(c - z, drawn(z, seed, first_layer, torch.randn))


@likeness(
    "sim_aou_random_text", "cos(c - z, h - z), h ~ U[0, 1)", "the papers' baseline as their text has it", default=False
)
def sim_aou_random_text(z: Tensor, c: Tensor, seed: int, first_layer: int = 0) -> Tensor:
    z, c = wide(z), wide(c)
    return cosine(c - z, drawn(z, seed, first_layer, torch.rand) - z)


@likeness(
    "sim_aou_random_code",
    "cos(c/|c| - z/|z|, r), r ~ U[0, 1)",
    "the papers' baseline as their code has it",
    default=False,
)
def sim_aou_random_code(z: Tensor, c: Tensor, seed: int, first_layer: int = 0) -> Tensor:
    """Outputs are scaled to unit norm first, as the published code does."""
    z, c = unit(wide(z)), unit(wide(c))
    return cosine(c - z, drawn(z, seed, first_layer, torch.rand))


@likeness(
    "sim_aou_centered",
    "cos of the changes, each less its mean over queries",
    "likeness of what is not a drift common to all queries",
    title="Attention outputs, less the shared drift",
)
def sim_aou_centered(z: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """Cosine after the mean change over the queries has been taken from both: what is not a common drift."""
    z, c, g = wide(z), wide(c), wide(g)
    return cosine(centered(c - z), centered(g - z))


def centered(change: Tensor) -> Tensor:
    """Less its mean over the queries, those that are not finite left out of it."""
    defined = torch.isfinite(change).all(-1, keepdim=True)
    total = torch.where(defined, change, 0).sum(0)
    return change - total / defined.sum(0).clamp(min=1)


@likeness(
    "sim_aou_mismatched",
    "mean over j != i of cos(c_i - z_i, g_j - z_j)",
    "null: what a drift that ignores the query gives",
)
def sim_aou_mismatched(z: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """Query i's reference change against every other query's learned change, mean over the others.

    The mean of the cosines is one dot product with the sum of the unit vectors, so all pairs cost as much as one.
    """
    z, c, g = wide(z), wide(c), wide(g)
    left, right = unit(c - z), unit(g - z)
    defined = torch.isfinite(right).all(-1, keepdim=True)
    filled = torch.where(defined, right, 0)
    others = (defined.sum(0) - defined.to(filled.dtype)).squeeze(-1)
    value = (left * (filled.sum(0) - filled)).sum(-1) / others
    return torch.where((others > 0) & torch.isfinite(value), value, torch.nan)


@likeness(
    "sim_aou_dilution",
    "cos(c - z, -(z - b_o)), b_o: the output projection's bias",
    "null: the zero-shot output shrunk, in place of GD's update",
)
def sim_aou_dilution(z: Tensor, c: Tensor, bias: Tensor | None = None) -> Tensor:
    """The reference's change against zero-shot's output shrunk: cos(c - z, -(z - b)).

    Softmax takes from the query's own tokens the weight that it gives to a context. ``bias`` [layers, width] is the
    output projection's, which does not shrink.

    >>> z = torch.tensor([[[2.0, 0.0]]])
    >>> sim_aou_dilution(z, 0.7 * z).item()
    1.0
    """
    z, c = wide(z), wide(c)
    return cosine(c - z, -of_heads(z, bias))


@likeness(
    "sim_aou_orthogonal",
    "cos of the changes, z - b_o's direction taken out of both",
    "likeness of what is not the zero-shot output shrunk or stretched",
    title="Attention outputs, beyond dilution",
)
def sim_aou_orthogonal(z: Tensor, c: Tensor, g: Tensor, bias: Tensor | None = None) -> Tensor:
    """Cosine of the two changes after the direction of z - b has been taken out of both: what is no dilution."""
    z, c, g = wide(z), wide(c), wide(g)
    along = unit(of_heads(z, bias))
    return cosine(across(c - z, along), across(g - z, along))


def across(change: Tensor, along: Tensor) -> Tensor:
    """A change without its part along a unit vector; NaN where the rounding of taking it out is all that is left."""
    rest = without(change, along)
    size, whole = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (rest, change))
    return torch.where(size > ROUNDING * whole, rest, torch.nan)


def without(change: Tensor, along: Tensor) -> Tensor:
    return change - (change * along).sum(-1, keepdim=True) * along


def of_heads(z: Tensor, bias: Tensor | None) -> Tensor:
    """What the heads gave of an output: all but the projection's bias."""
    return z if bias is None else z - wide(bias).to(z.device)


@likeness(
    "sim_aou_direct",
    "cos(c - z, g~ - z), g~: layer l's update on zero-shot inputs",
    "likeness of the layer's own part, without what drifted upstream",
    default=False,  # costs another pass over the queries
    wants=frozenset({"direct"}),
    applies=lambda case: case.is_pair and "direct_attn_out" in case.trace.extras,
    title="Attention outputs, own layer only",
)
def sim_aou_direct(z: Tensor, c: Tensor, direct: Tensor) -> Tensor:
    return sim_aou(z, c, direct)


def _has_nulls(case: Case) -> bool:
    return case.is_pair and case.has_attention and bool(case.nulls)


@likeness(
    "sim_aou_null",
    "cos(c - n, g - z), n: a null context",
    "likeness to what ICL adds to a null context",
    applies=_has_nulls,
)
def sim_aou_null(z: Tensor, c: Tensor, g: Tensor, nulls: dict[LearnerSpec, Tensor]) -> dict[LearnerSpec, Tensor]:
    return {learning: cosine(c - n, g - z) for learning, n in nulls.items()}


@likeness(
    "sim_aou_to_null", "cos(n - z, g - z), n: a null context", "likeness of GD to a null context", applies=_has_nulls
)
def sim_aou_to_null(z: Tensor, g: Tensor, nulls: dict[LearnerSpec, Tensor]) -> dict[LearnerSpec, Tensor]:
    return {learning: cosine(n - z, g - z) for learning, n in nulls.items()}


# The likeness of attention outputs under every reasonable way to compute it: a specification curve, on request.


OUTLIERS = 0.01  # of a layer's dimensions, at least one


def scaled(change: Tensor, z: Tensor, dimensions: Dimensions) -> Tensor:
    """A change [queries, layers, width] with each dimension weighted as asked, by zero-shot's outputs z."""
    if dimensions == "all":
        return change
    if dimensions == "standardised":
        spread = z.std(0, correction=0)
        return torch.where(spread > 0, change / spread, 0.0)
    count = max(1, round(OUTLIERS * z.shape[-1]))
    largest = z.abs().mean(0).topk(count, -1).indices  # [layers, count]
    return change * torch.ones_like(change[0]).scatter(-1, largest, 0.0)


def layer_values(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    """By aggregate, from two changes [queries, layers, width]; NaN queries are left out: [layers]."""
    dot, one, other = (left * right).sum(-1), left.square().sum(-1), right.square().sum(-1)
    cosines = dot / (one * other).sqrt()
    there = cosines.isfinite()
    cosines = torch.where(there, cosines, torch.nan)
    dot, one, other = (torch.where(there, part, 0.0).sum(0) for part in (dot, one, other))
    pooled = dot / (one * other).sqrt()
    middle = cosines.nanquantile(0.5, dim=0)
    return {"mean": cosines.nanmean(0), "median": middle, "pooled": pooled}


def over_layers(values: Tensor, weights: LayerWeights, size: Tensor) -> Tensor:
    """The mean over layers that have a value; ``size`` is ICL's change beside the output itself: [layers]."""
    layers = len(values)
    by = {
        "equal": torch.ones_like(size),
        "by ICL's change": size,
        "upper half": (torch.arange(layers, device=size.device) >= layers // 2).to(size),
    }[weights]
    by = torch.where(values.isfinite(), by, 0.0)
    return torch.where(by > 0, values * by, 0.0).sum() / by.sum()


def specified(case: Case) -> dict[Specification, Tensor]:
    """The likeness under every specification."""
    out = out_of_reach(case)
    parts: dict[tuple[Dimensions, Centring, str], list[Tensor]] = {}
    sizes = []
    for at in layer_slices(case.trace.attn_out):
        z, c, g = (outputs(t, at).clone() for t in (case.zero_shot, case.reference, case.trace))
        if out is not None and at.start == 0:
            g[out.to(g.device), 0] = torch.nan
        sizes.append((c - z).square().sum((0, 2)) / z.square().sum((0, 2)))
        for dimensions in get_args(Dimensions):
            left, right = (scaled(change, z, dimensions) for change in (c - z, g - z))
            for centring in get_args(Centring):
                if centring == "over queries":
                    there = right.isfinite().all(-1, keepdim=True)
                    left, right = (
                        torch.where(there, d - torch.where(there, d, torch.nan).nanmean(0), torch.nan)
                        for d in (left, right)
                    )
                for aggregate, values in layer_values(left, right).items():
                    parts.setdefault((dimensions, centring, aggregate), []).append(values)
    size = torch.cat(sizes).nan_to_num(0.0, 0.0, 0.0)
    return {
        one: over_layers(torch.cat(parts[one.dimensions, one.centring, one.aggregate]), one.weights, size)
        for one in SPECIFICATIONS.values()
    }


@metric(
    "sim_aou_specified",
    "sim_aou by dimensions x layer weights x centring x aggregate; `reference` names the specification",
    "likeness under every other reasonable way to compute it: a specification curve",
    applies=lambda case: case.is_pair and case.has_attention and not case.learned.one_layer,
    within=COSINE,
    by_subset=False,
    default=False,
)
def sim_aou_specified(case: Case) -> Iterator[Values]:
    for one, value in specified(case).items():
        yield Logged("sim_aou_specified", value, one.name)
