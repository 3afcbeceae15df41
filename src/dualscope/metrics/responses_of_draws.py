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
from dualscope.core.statistics import COSINE, SHARE, SIZE, Bounds
from dualscope.core.words import LEVELS, Level
from dualscope.learners.response_bench import UNIFORM, answer_vectors
from dualscope.metrics.case import Case, Values
from dualscope.metrics.metric import metric
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    import numpy as np


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


def of_draws(name: str, formula: str, about: str, within: Bounds = COSINE, needs_gold: bool = False) -> None:
    """Registers a metric that is made from the draws of an intervention (`measured_response`), not from a case."""
    add = metric(name, formula, about, applies=lambda _case: False, within=within, needs_gold=needs_gold)
    add(_of_no_case)


def _of_no_case(_case: Case) -> tuple[Values, ...]:
    return ()


of_draws(
    "learned_share",
    "K/(K-1) sum |D_k|^2 / sum |a_k - z|^2, a the label log-probabilities on draw k, D_k = a_k less their mean",
    "share of the change of the answers that depends on which label stands where (draws of `relabel`)",
    within=SHARE,
)
of_draws("learned_share_aou", "the same of attn_out", "the same of the attention outputs, by layer", within=SHARE)
of_draws(
    "response_answers",
    "sum <D_icl, D> / sqrt(sum |D_icl|^2 sum |D|^2), D less each draw's mean over queries",
    "when the labels change, do the answers move as ICL's (or a plant's) do? The function that was learned",
)
of_draws("response_answers_given", "the same given copying", "the same once what is copied by place is taken out")
of_draws("response_bias", "the same of the mean over queries", "the prior that was learned")
of_draws(
    "response_aou",
    "response_answers of attn_out, layers weighted by ICL's learned_share_aou",
    "when the labels change, do the attention outputs move as ICL's do?",
)
of_draws("response_aou_given", "the same given copying", "the same once what is copied by place is taken out")
of_draws("response_am", "the same of attn_scores", "when the labels change, do attention maps move as ICL's do?")
of_draws(
    "response_geometry",
    "max over layers m of corr(G_icl,l[k, k'], G_m[k, k']), k < k', G[k, k'] = sum over queries <D_k, D_k'>",
    "are draws that are close in a layer of ICL close in some layer of the learner?",
)
of_draws("response_snr", "rms D / (eps rms attn_out)", "how far a response lies above rounding", within=SIZE)
of_draws("copying", "mean over pairs of sets of r(P_i, P_j)", "how alike ICL copies labels behind other inputs")
of_draws(
    "influence",
    "mean |change of the right label's log-odds when one demonstration's label is flipped|",
    "what one demonstration teaches (draws of `flip-one`)",
    within=SIZE,
    needs_gold=True,
)
of_draws(
    "response_influence",
    "correlation of both influence matrices, less the mean over queries",
    "did each demonstration teach the same as in ICL?",
    needs_gold=True,
)
