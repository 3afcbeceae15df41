"""Responses: how what a learner leaves moves when the demonstrations say something else and nothing else changes.

a_k is what a learner left on draw k of an intervention, D_k the same less the mean over the draws of its level. All
that a context does whatever its labels say is the same in every draw, and is not in D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from dualscope.core.response_products import Products
from dualscope.core.words import LEVELS, Level
from dualscope.models.trace import Trace

if TYPE_CHECKING:
    import numpy as np

UNIFORM = 1e-3  # mixed into label probabilities, so that no log-probability runs away
SNR_FLOOR = 10.0  # a response is compared where it is that many times what rounding makes of the outputs


@dataclass(frozen=True)
class Responses:
    """What one learner left on every draw: the answers, and the attention outputs where it has them."""

    draws: tuple[int, ...]  # which draws of the intervention, in order; one that failed is not here
    levels: tuple[Level | None, ...]  # of each draw
    answers: Tensor  # [draws, queries, classes], see `answer_vectors`
    outputs: Tensor | None = None  # [draws, queries, layers, width]
    scores: Tensor | None = None  # [draws, queries, layers, heads x tokens], 0 where a query has no token

    @classmethod
    def of(
        cls,
        traces: Sequence[Trace],
        draws: Sequence[int],
        levels: Sequence[Level | None],
        predictions_only: bool = False,
        scores: bool = False,
    ) -> Responses:
        """From one trace a draw."""
        answers = torch.stack([answer_vectors(trace.label_logprobs) for trace in traces])
        outputs = None if predictions_only else torch.stack([trace.attn_out for trace in traces])
        maps = None
        if scores and not predictions_only:
            maps = torch.stack([trace.attn_scores.flatten(2).nan_to_num(0.0) for trace in traces])
        return cls(tuple(draws), tuple(levels), answers, outputs, maps)

    def only(self, draws: Sequence[int]) -> Responses:
        """The same with these draws alone."""
        if tuple(draws) == self.draws:
            return self
        rows = [self.draws.index(draw) for draw in draws]

        def cut(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        return replace(
            self,
            draws=tuple(draws),
            levels=tuple(self.levels[row] for row in rows),
            answers=self.answers[rows],
            outputs=cut(self.outputs),
            scores=cut(self.scores),
        )


def answer_vectors(label_logprobs: Tensor) -> Tensor:
    """Log-probabilities of the classes as vectors: renormalised, mixed with a little of the uniform, centred.

    >>> answer_vectors(torch.tensor([[0.5, 0.5]]).log())
    tensor([[0., 0.]], dtype=torch.float64)
    """
    shares = F.softmax(label_logprobs.double(), -1)
    logs = ((1 - UNIFORM) * shares + UNIFORM / shares.shape[-1]).log()
    return logs - logs.mean(-1, keepdim=True)


def centred(values: Tensor, levels: Sequence[Level | None]) -> Tensor:
    """D: every draw less the mean over the draws of its level. ``values`` is [draws, ...]."""
    found = values.double().clone()
    for level in dict.fromkeys(levels):
        rows = [row for row, own in enumerate(levels) if own == level]
        found[rows] -= found[rows].mean(0, keepdim=True)
    return found


def function_part(responses: Tensor) -> Tensor:
    """The responses less each draw's mean over the queries: the function that was learned, without its prior."""
    return responses - responses.mean(1, keepdim=True)


def learned_share(values: Tensor, start: Tensor, levels: Sequence[Level | None]) -> float:
    """The part of a change that depends on which label stands where: K/(K-1) sum |D_k|^2 / sum |a_k - z|^2.

    Of the draws of the level ``chance`` alone, whose labels say nothing of the task. 1 for what learns all that it
    changes from the labels, 0 for what ignores them. ``start`` is zero-shot's, [queries, ...].
    """
    rows = [row for row, level in enumerate(levels) if level == LEVELS[0]]
    chosen = values[rows].double()
    moved = (chosen - start.double()).square().sum()
    if len(rows) < 2 or moved == 0:
        return float("nan")
    spread = (chosen - chosen.mean(0, keepdim=True)).square().sum()
    return float(len(rows) / (len(rows) - 1) * spread / moved)


def products(reference: Tensor, own: Tensor) -> Products:
    """Of two sets of responses, [draws, queries, ...] each, on the same draws and queries."""
    r, s = reference.flatten(2), own.flatten(2)
    draws = r.flatten(1) @ s.flatten(1).T
    queries = r.transpose(0, 1).flatten(1) @ s.transpose(0, 1).flatten(1).T
    return Products(draws.cpu().numpy(), queries.cpu().numpy(), float(r.square().sum()), float(s.square().sum()))


def signal_to_noise(values: Tensor, responses: Tensor, epsilon: float) -> float:
    """How large responses are beside what rounding makes of the values that they are taken from."""
    scale = values.double().square().mean().sqrt() * epsilon
    return float(responses.square().mean().sqrt() / scale) if scale > 0 else float("inf")


def gram(responses: Tensor) -> np.ndarray:
    """G[k, l]: the products of one learner's own draws, [draws, draws]."""
    flat = responses.flatten(1)
    found: np.ndarray = (flat @ flat.T).cpu().numpy()
    return found


def influence(traces: Sequence[Trace], before: Trace) -> Tensor:
    """What each demonstration taught: [queries, demonstrations], the change of the right label's log-odds.

    ``traces`` are those of the draws of `flip-one`, ``before`` that of the lesson as it was drawn.
    """

    def log_odds(trace: Trace) -> Tensor:
        shares = F.softmax(trace.label_logprobs.double(), -1)
        shares = (1 - UNIFORM) * shares + UNIFORM / shares.shape[-1]
        right = shares.gather(1, trace.labels[:, None])[:, 0]
        return right.log() - (1 - right).log()

    start = log_odds(before)
    return torch.stack([log_odds(trace) - start for trace in traces], 1)
