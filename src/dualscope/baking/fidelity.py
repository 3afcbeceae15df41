"""How faithful a model with a baked adapter is to the context that was baked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.shares import share_of
from dualscope.metrics.explained import distribution, divergence, left_unexplained

if TYPE_CHECKING:
    from dualscope.models.trace import Trace


@dataclass(frozen=True)
class Fidelity:
    """On held-out queries of the task."""

    queries: int
    chance: float
    accuracy_zero_shot: float
    accuracy_in_context: float
    accuracy_baked: float
    agreement: float  # share of queries that the baked model answers as in-context learning does
    agreement_zero_shot: float
    explained: float  # of the divergence between zero-shot's answers and in-context learning's
    explained_by_ceiling: float | None  # the same by kv-distilled; None: it was not fitted
    shots: int
    tokens_saved: int  # a query

    @property
    def share_of_ceiling(self) -> float | None:
        """What is explained, as a share of what the best change of keys and values explains."""
        if self.explained_by_ceiling is None:
            return None
        return self.explained / self.explained_by_ceiling if self.explained_by_ceiling > 0 else float("nan")


@dataclass(frozen=True)
class Drift:
    """What an adapter does to another task's queries, asked without demonstrations."""

    task: str
    queries: int
    accuracy_before: float
    accuracy_after: float
    changed: float  # share of answers that are others
    divergence: float  # mean KL(before || after) of the labels, in nats


def explained_share(icl: Trace, zero_shot: Trace, own: Trace) -> float:
    """The metric ``explained`` of one trace; NaN where zero-shot says what in-context learning says."""
    target = distribution(icl.label_logprobs)
    left, whole = (float(left_unexplained(target, t.label_logprobs).mean()) for t in (own, zero_shot))
    return float(share_of(left, whole))


def agreement(one: Trace, other: Trace) -> float:
    """The share of queries that two traces answer alike."""
    return _share(one.predictions.cpu() == other.predictions.cpu())


def accuracy(trace: Trace) -> float:
    return _share(trace.correct)


def drift_of(task: str, before: Trace, after: Trace) -> Drift:
    """Of the same queries, without and with the adapter."""
    apart = divergence(distribution(before.label_logprobs), distribution(after.label_logprobs))
    changed = 1 - agreement(before, after)
    return Drift(task, len(before), accuracy(before), accuracy(after), changed, float(apart.mean()))


def _share(which: Tensor) -> float:
    return float(which.to(torch.float64).mean())
