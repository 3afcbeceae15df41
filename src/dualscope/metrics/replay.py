"""Replay: does the part of ICL's change that a learner shares cause ICL's answers?

ICL's change of attn_out is split, query by query and layer by layer, into the part along the learner's change and the
rest. Each is given to the model in place of the context, and the change of the answers is compared with ICL's:
share = <D, D_icl> / |D_icl|^2. A cosine says how alike two changes are; a replay says whether that part does anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.spec import LearnerSpec
from dualscope.core.statistics import ratio
from dualscope.learners.response_bench import answer_vectors
from dualscope.metrics.case import Case, PerQuery, Pooled, Values
from dualscope.metrics.metric import metric
from dualscope.models.reading.given_outputs import replayed

if TYPE_CHECKING:
    import numpy as np

    from dualscope.learners.bench import Bench

START = "replay_start"  # the answers with zero-shot's own attention outputs


def read_replays(bench: Bench, case: Case, names: Collection[str]) -> Mapping[str, Tensor]:
    """The model with parts of the reference's change in place of its own attention outputs.

    By metric: the answers with all layers given, [queries, classes], and under ``name/layers`` with one at a time,
    [layers, queries, classes].
    """
    if not (case.is_pair and case.has_attention):
        return {}
    model, lesson, zero = bench.model, bench.lesson, bench.zero_shot.attn_out
    change, direction = case.reference.attn_out - zero, case.trace.attn_out - zero
    parts = {
        "replay_along": along(change, direction),
        "replay_without": change - along(change, direction),
        "replay_along_mismatched": along(change, direction.roll(1, 0)),
    }
    found = {START: replayed(model, lesson, zero)}
    for name in names:
        layers = [replayed(model, lesson, zero + only(parts[name], layer)) for layer in range(zero.shape[1])]
        found |= {name: replayed(model, lesson, zero + parts[name]), f"{name}/layers": torch.stack(layers)}
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


@dataclass(frozen=True)
class Effect:
    """What the context does to the answers, beside which other changes of them are measured."""

    start: Tensor  # the answers before, [queries, classes]
    whole: Tensor  # in-context learning's change of them

    @classmethod
    def of(cls, before: Tensor, after: Tensor) -> Effect:
        """From label log-probabilities, [queries, classes] both."""
        start = answer_vectors(before)
        return cls(start, answer_vectors(after) - start)

    @property
    def size(self) -> Tensor:
        return self.whole.square().sum(-1)

    def caused(self, answers: Tensor) -> Tensor:
        """<D, D_icl> of other answers, [..., queries, classes] -> [..., queries]."""
        return ((answer_vectors(answers) - self.start) * self.whole).sum(-1)

    def shares(self, name: str, case: Case, reference: LearnerSpec) -> Iterator[Values]:
        """The share that a reading of the model causes, with all layers given and layer by layer."""
        parts = torch.stack([self.caused(case.read[name]), self.size], -1)
        yield Pooled(name, parts, share_of_sums, reference)
        if f"{name}/layers" in case.read:
            layers = self.caused(case.read[f"{name}/layers"]).T  # [queries, layers]
            weights = self.size[:, None].expand_as(layers)
            yield PerQuery(name, layers, reference, weights=weights, over_layers="none")


def share_of_sums(sums: np.ndarray) -> np.ndarray:
    return ratio(sums[..., 0], sums[..., 1])


def _effect(case: Case) -> Effect:
    return Effect.of(case.read[START], case.reference.label_logprobs)


def _replay(name: str, formula: str, about: str) -> None:
    """Registers what `read_replays` reads as a metric."""
    of_replays = partial(metric, reading=read_replays, by_subset=False, default=False)
    add = of_replays(name, formula, about, applies=lambda case: case.is_pair and name in case.read)
    add(lambda case: case.shared(_effect).shares(name, case, case.against.learning))


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
