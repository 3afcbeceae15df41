"""Are two changes of weights alike: gradient descent's, and one that does what the context does?

K and V: gd with the fitted ceilings. The MLP's input projection: gd on all weights with the context as a patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import COSINE, SIZE
from dualscope.descent.parameters import layer_of
from dualscope.learners.ceilings.context_patches import StaticPatch
from dualscope.learners.learner import Learned, Result
from dualscope.metrics.case import Case, Logged, PerQuery, Values
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import Applies, Measure, metric
from dualscope.models.reading.context_patch import ContextPatch

ByLayer = dict[int, dict[str, Tensor]]


def changed_weights(learned: Learned) -> Mapping[str, Tensor]:
    """The matrices and biases that changed, by name; none where activations alone did, or each query's its own way."""
    if learned.delta is not None:
        return learned.delta
    return learned.change.weights() if isinstance(learned.change, StaticPatch) else {}


def by_layer(changes: Mapping[str, Tensor], only: set[str]) -> ByLayer:
    found: ByLayer = {}
    for name in changes:
        layer = layer_of(name)
        if name in only and layer is not None:
            found.setdefault(layer, {})[name] = wide(changes[name])
    return found


def dot(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([(a * b.to(a.device)).sum() for a, b in zip(left.values(), right.values(), strict=True)]).sum()


def similarity(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], layers: int) -> tuple[Tensor, Tensor]:
    """The cosine of each layer's changes, [layers], and its mean with the other's other layers: [layers].

    NaN where a layer has no weight that both change, or one of them by nothing.
    """
    shared = set(ours) & set(theirs)
    left, right = by_layer(ours, shared), by_layer(theirs, shared)
    size = {layer: dot(right[layer], right[layer]).sqrt() for layer in right}
    same, crossed = torch.full((2, layers), torch.nan, dtype=torch.float64)
    for layer, own in left.items():
        norm = dot(own, own).sqrt()

        def cosine(other: int, own: Mapping[str, Tensor] = own, norm: Tensor = norm) -> float:
            return float(dot(own, right[other]) / (norm * size[other]))

        same[layer] = cosine(layer)
        shapes = [value.shape for value in own.values()]
        others = [i for i in right if i != layer and [value.shape for value in right[i].values()] == shapes]
        if others:
            crossed[layer] = sum(map(cosine, others)) / len(others)
    return same, crossed


def patch_similarity(changes: Mapping[str, Tensor], patch: ContextPatch, queries: tuple[str, ...]) -> Tensor:
    """The cosine with each query's own patch, dW = left right^T: [queries, layers].

    <D, left right^T> = left^T D right, so no patch is ever written out.
    """
    columns = []
    for layer, factors in enumerate(patch.factors(queries)):
        top = torch.zeros(len(queries), dtype=torch.float64)
        own, theirs = torch.zeros((), dtype=torch.float64), torch.zeros(len(queries), dtype=torch.float64)
        for name, (left, right) in factors.items():
            if name not in changes:
                continue
            change = wide(changes[name]).cpu()
            a, b = wide(left).cpu(), wide(right).cpu()
            if not isinstance(patch.mlps[layer].inputs[name], nn.Linear):  # GPT-2's Conv1D keeps [in, out]
                change = change.T
            top += torch.einsum("qo,oi,qi->q", a, change, b)
            own += change.square().sum()
            theirs += a.square().sum(-1) * b.square().sum(-1)
        columns.append(top / (own * theirs).sqrt())
    return torch.stack(columns, -1)


def _pairs(case: Case) -> Iterator[Result]:
    ours = set(changed_weights(case.learned))
    for other in case.others:
        if other.learning.control is None and other.role == "ceiling":
            patch = other.learned.change
            names = (
                {name for mlp in patch.mlps for name in mlp.inputs}
                if isinstance(patch, ContextPatch)
                else set(changed_weights(other.learned))
            )
            if ours & names:
                yield other


def _similarities(case: Case) -> dict[LearnerSpec, tuple[Tensor, Tensor]]:
    """With every other change that is the same for all queries: `similarity`."""
    ours, layers = changed_weights(case.learned), case.trace.attn_out.shape[1]
    return {
        other.learning: similarity(ours, changed_weights(other.learned), layers)
        for other in _pairs(case)
        if not isinstance(other.learned.change, ContextPatch)
    }


likeness = partial(
    metric, applies=lambda case: any(True for _ in _pairs(case)), within=COSINE, by_subset=False, default=False
)


@likeness(
    "sim_dw",
    "cos(dW, dW') of the weights that both change, per layer",
    "is GD's change of the weights like one that does what the context does; `reference` names that one",
)
def sim_dw(case: Case) -> Iterator[Values]:
    for other in _pairs(case):
        patch = other.learned.change
        if isinstance(patch, ContextPatch):
            values = patch_similarity(changed_weights(case.learned), patch, case.trace.query_ids)
            yield PerQuery("sim_dw", values, other.learning)
        else:
            yield Logged("sim_dw", case.shared(_similarities)[other.learning][0], other.learning)


@likeness("sim_dw_mismatched", "mean over k != l of cos(dW_l, dW'_k)", "null of sim_dw: another layer's change")
def sim_dw_mismatched(case: Case) -> Iterator[Values]:
    for learning, (_, crossed) in case.shared(_similarities).items():
        yield Logged("sim_dw_mismatched", crossed, learning)


# How the learning itself went: the sizes of gradients and updates.


def _of_log(name: str) -> Measure:
    return lambda case: Logged(name, torch.as_tensor(getattr(case.learned.log, name)))


def _is_logged(name: str) -> Applies:
    return lambda case: getattr(case.learned.log, name) is not None


for _name, _formula, _about in (
    ("grad_norm", "|dL/dW_l| of each step", "norm of the gradient of a layer's keys and values, per step"),
    ("update_norm", "|W_l - W_l(0)| / |W_l(0)|", "how far a layer's keys and values moved, relative to the weights"),
    ("clipped_steps", "number of steps", "how many steps the clip cut"),
):
    metric(_name, _formula, _about, applies=_is_logged(_name), within=SIZE)(_of_log(_name))
