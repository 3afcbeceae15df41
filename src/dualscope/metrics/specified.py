"""The likeness of attention outputs under every reasonable way to compute it: a specification curve, on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from dualscope.core.specification import SPECIFICATIONS, Centring, Dimensions, LayerWeights, Specification
from dualscope.core.statistics import COSINE
from dualscope.metrics.attention_output import out_of_reach, outputs
from dualscope.metrics.case import Case, Logged, Values
from dualscope.metrics.cosine import layer_slices
from dualscope.metrics.metric import metric

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
