"""How much of what the context does to the predictions a learner explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dualscope.core.learning import IN_CONTEXT
from dualscope.core.statistics import SHARE, SIZE
from dualscope.metrics.case import Case
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import family
from dualscope.metrics.values import PerQuery, Values
from dualscope.models.trace import Trace

MIXED = 1e-3  # of the uniform, so that one sure and wrong answer does not outweigh all others


def distribution(scores: Tensor) -> Tensor:
    """Scores of outcomes, [queries, outcomes], as probabilities with a little of the uniform mixed in.

    >>> distribution(torch.tensor([[0.0, -torch.inf]])).round(decimals=6).tolist()
    [[0.9995, 0.0005]]
    """
    return (1 - MIXED) * wide(scores).softmax(-1) + MIXED / scores.shape[-1]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of every query: [queries, outcomes] twice -> [queries]."""
    return (p * (p.log() - q.log())).sum(-1)


def next_tokens(trace: Trace) -> Tensor:
    """Scores over ICL's likeliest next tokens and one bucket for all others: [queries, tokens + 1]."""
    likeliest = wide(trace.extras["next_logprobs"])
    rest = torch.log1p(-likeliest.exp().sum(-1, keepdim=True).clamp(max=1 - 1e-12))
    return torch.cat([likeliest, rest], -1)


def explained_share(own: Tensor, zero: Tensor, again: Tensor | None = None) -> Tensor:
    """Each query's part in 1 - mean KL(own) / mean KL(zero-shot), from the KL to ICL of each: [queries].

    Their mean is the share. NaN, "nothing to explain", where zero-shot is no further from ICL than ICL is from itself
    after other demonstrations (``again``).

    >>> explained_share(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0])).tolist()
    [1.0, 0.5]
    >>> explained_share(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([4.0])).tolist()
    [nan]
    """
    whole = zero.mean()
    if not whole > 0 or (again is not None and whole <= again.mean()):
        return torch.full_like(own, torch.nan)
    return (zero - own) / whole


def _scores(trace: Trace, name: str) -> Tensor:
    return trace.label_logprobs if name == "explained" else next_tokens(trace)


def _shares(case: Case, names: frozenset[str]) -> Iterator[Values]:
    redrawn = [
        other.trace for other in (case.own, *case.others) if other.learning == IN_CONTEXT.under("redraw")
    ]
    for name in names:
        target = distribution(_scores(case.reference, name))

        def apart(trace: Trace, name: str = name, target: Tensor = target) -> Tensor:
            return divergence(target, distribution(_scores(trace, name)).to(target.device))

        again = apart(redrawn[0]) if redrawn else None
        share = explained_share(apart(case.trace), apart(case.zero_shot), again)
        yield PerQuery(name, share, case.against.learning)


def _alike(case: Case, names: frozenset[str]) -> Iterator[Values]:
    if "agreement" in names:
        yield PerQuery(
            "agreement", case.trace.predictions == case.reference.predictions, case.against.learning
        )
    if "topk_overlap" in names:
        ours, theirs = case.trace.extras["top_tokens"], case.reference.extras["top_tokens"]
        shared = (ours[:, :, None] == theirs[:, None, :]).any(-1).double().mean(-1)
        yield PerQuery("topk_overlap", shared, case.against.learning)


def order_sensitivity(traces: list[Trace]) -> Tensor:
    """The standard deviation over orders of the right label's probability: [queries]."""
    right = [wide(t.label_logprobs).softmax(-1).gather(-1, t.labels[:, None]).squeeze(-1) for t in traces]
    return torch.stack(right).std(0)


def _reordered(case: Case) -> list[Trace]:
    return [other.trace for other in case.others if other.learning.is_reordered(case.learning)]


def _orders(case: Case, _names: frozenset[str]) -> Iterator[Values]:
    yield PerQuery("order_sensitivity", order_sensitivity(_reordered(case)))


ORDERS = 5  # the fewest whose spread is a number


def _has_next(case: Case) -> bool:
    traces = (case.trace, case.reference, case.zero_shot)
    return case.is_pair and case.has_attention and all("next_logprobs" in t.extras for t in traces)


_add = family(_shares, lambda case: case.is_pair, (-math.inf, 1.0), by_subset=False)
_add(
    "explained",
    "1 - mean KL(p_icl || p) / mean KL(p_icl || p_zero_shot), over the classes",
    "share of ICL's change of the label probabilities that the learner makes too",
)
_add(
    "explained_next_token",
    "explained, over ICL's 100 likeliest next tokens and one bucket for the rest",
    "share of ICL's change of the next token's probabilities that the learner makes too",
    default=False,
    wants=["next_tokens"],
    applies=_has_next,
)
_add = family(_alike, lambda case: case.is_pair, SHARE, by_subset=False)
_add("agreement", "|prediction = ICL's| / queries", "share of queries where the learner answers as ICL does")
_add(
    "topk_overlap",
    "|top 10 & ICL's top 10| / 10, of the next tokens",
    "overlap of the ten likeliest next tokens",
    default=False,
    wants=["next_tokens"],
    applies=lambda case: _has_next(case) and "top_tokens" in case.trace.extras,
)
family(_orders, lambda case: not case.is_baseline and len(_reordered(case)) >= ORDERS, SIZE, by_subset=False)(
    "order_sensitivity",
    "std over reorderings of the right label's probability",
    "how much the order of the demonstrations matters to the learner",
    default=False,
)
