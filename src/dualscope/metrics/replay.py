"""Replay: does the part of ICL's change that a learner shares cause ICL's answers?

ICL's change of attn_out is split, query by query and layer by layer, into the part along the learner's change and the
rest. Each is given to the model in place of the context, and the change of the answers is compared with ICL's:
share = <D, D_icl> / |D_icl|^2. A cosine says how alike two changes are; a replay says whether that part does anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.statistics import ratio
from dualscope.learners.response_bench import answer_vectors
from dualscope.metrics.case import Case, PerQuery, Pooled, Values
from dualscope.metrics.metric import Measure, metric
from dualscope.models.reading.given_outputs import replayed

if TYPE_CHECKING:
    import numpy as np

    from dualscope.learners.bench import Bench
    from dualscope.models.reading.trace import Trace

START = "start"
REPLAYS = ("replay_along", "replay_without", "replay_along_mismatched")
Replays = Mapping[str, tuple[Tensor, Tensor]]
"""By metric: the answers with all layers given, [queries, classes], and with one at a time, [layers, queries, classes].
Under START: the answers with zero-shot's own attention outputs."""


def read_replays(bench: Bench, own: Trace, reference: Trace, names: Collection[str]) -> Replays:
    """The model with parts of the reference's change in place of its own attention outputs."""
    zero = bench.zero_shot.attn_out
    change, direction = reference.attn_out - zero, own.attn_out - zero
    parts = {
        "replay_along": along(change, direction),
        "replay_without": change - along(change, direction),
        "replay_along_mismatched": along(change, direction.roll(1, 0)),
    }
    start = replayed(bench.model, bench.lesson, zero)
    found = {START: (start, start[None])}
    for name in REPLAYS:
        if name in names:
            part = parts[name]
            layers = [replayed(bench.model, bench.lesson, zero + only(part, layer)) for layer in range(zero.shape[1])]
            found[name] = replayed(bench.model, bench.lesson, zero + part), torch.stack(layers)
    return found


def along(change: Tensor, direction: Tensor) -> Tensor:
    """The part of one change along another, query by query and layer by layer; none where there is no direction."""
    size = direction.square().sum(-1, keepdim=True)
    share = (change * direction).sum(-1, keepdim=True) / size.masked_fill(size == 0, 1.0)
    return share * direction


def only(part: Tensor, layer: int) -> Tensor:
    """The same in one layer, nothing in the others."""
    found = torch.zeros_like(part)
    found[:, layer] = part[:, layer]
    return found


def _effect(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """The answers before, ICL's whole change of them, and its size: [queries, classes] twice, [queries]."""
    start = answer_vectors(case.replays[START][0])
    whole = answer_vectors(case.reference.label_logprobs) - start
    return start, whole, whole.square().sum(-1)


def _share_of(name: str) -> Measure:
    def values(case: Case) -> Iterator[Values]:
        start, whole, size = case.shared(_effect)
        together, by_layer = case.replays[name]
        top = ((answer_vectors(together) - start) * whole).sum(-1)
        yield Pooled(name, torch.stack([top, size], -1), share_of_sums, case.against.learning)
        layers = ((answer_vectors(by_layer) - start) * whole).sum(-1).T  # [queries, layers]
        weights = size[:, None].expand_as(layers)
        yield PerQuery(name, layers, case.against.learning, weights=weights, over_layers="none")

    return values


def share_of_sums(sums: np.ndarray) -> np.ndarray:
    return ratio(sums[..., 0], sums[..., 1])


def _replay(name: str, formula: str, about: str) -> None:
    """Registers what `read_replays` has read before as a metric."""
    add = metric(
        name, formula, about, applies=lambda case: case.is_pair and name in case.replays, by_subset=False, default=False
    )
    add(_share_of(name))


_replay(
    "replay_along",
    "<D, D_icl> / |D_icl|^2, D the change of the answers when attn_out gets ICL's change along the learner's alone",
    "share of ICL's effect on the answers that comes through the direction of the learner's change",
)
_replay("replay_without", "the same with that part taken away", "share that is left without that direction")
_replay(
    "replay_along_mismatched",
    "replay_along, along the change that the learner makes to another query",
    "null: the direction of another query's change",
)
