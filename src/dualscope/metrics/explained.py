"""How much of what the context does to the predictions a learner explains."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.core.statistics import COSINE, SHARE, SHARES, SIZE, ratio, share_of
from dualscope.metrics.case import Case, PerQuery, Pooled, Values
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import Function, metric
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


# The nearest that scores come to a target by an inverse temperature and class biases alone: a convex fit.


STEEPEST = 20.0
"""The largest inverse temperature. The smallest is 0: below it the opposite of a target would be the target."""
STEPS = 200
ENOUGH = 1e-13  # nats: what one more step would gain at most


@dataclass(frozen=True)
class Calibration:
    """An inverse temperature and a bias for each outcome."""

    slope: float
    biases: Tensor  # [outcomes]

    def apply(self, scores: Tensor) -> Tensor:
        """Log-probabilities, [queries, outcomes]."""
        return (self.slope * _centred(scores) + self.biases).log_softmax(-1)


def calibration(target: Tensor, scores: Tensor, biases: bool = True) -> Calibration:
    """The t in [0, 20] and b for which softmax(t scores + b) is nearest to ``target``: [queries, outcomes] both.

    ``target`` are probabilities, all above 0; nearest is the least mean KL(target || .). That is convex in t and b, so
    where the best t of all lies outside its bounds, the best one within them is the bound.

    >>> target = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    >>> scores = 4 * target.log() + torch.tensor([5.0, 0.0])
    >>> found = calibration(target, scores)
    >>> round(found.slope, 6), found.apply(scores).exp()[:, 0].round(decimals=6).tolist()
    (0.25, [0.2, 0.6])
    >>> calibration(target, -target.log()).slope  # the opposite tells nothing
    0.0
    """
    target, x = wide(target).cpu(), _centred(scores)
    size = float(x.square().mean().sqrt())
    if size == 0:
        return _at(target, x, 0.0, biases)
    # Scores of the size of 1: one damping suits all.
    slope, found = _newton(target, x / size, biases)
    if slope < 0:
        return _at(target, x, 0.0, biases)
    if slope > STEEPEST * size:
        return _at(target, x, STEEPEST, biases)
    return Calibration(slope / size, found)


def _centred(scores: Tensor) -> Tensor:
    """In float64 on the CPU, less the mean over outcomes, which no probability depends on."""
    x = wide(scores).cpu()
    return x - x.mean(-1, keepdim=True)


def _at(target: Tensor, x: Tensor, slope: float, biases: bool) -> Calibration:
    """The best biases at a given slope."""
    if not biases:
        return Calibration(slope, x.new_zeros(x.shape[-1]))
    if slope == 0:  # the same answer to every query: the target's mean
        return Calibration(slope, target.mean(0).log())
    return Calibration(slope, _newton(target, slope * x, biases, free=False)[1])


def _newton(target: Tensor, x: Tensor, biases: bool, free: bool = True) -> tuple[float, Tensor]:
    """The best slope of x and the best biases; where the slope is not free it is 1."""
    outcomes = x.shape[-1]
    start = [torch.tensor([0.0 if free and biases else 1.0]), target.mean(0).log() * biases * free]
    point = torch.cat([part.to(x) for part in start])
    # What is held stays where it is; all biases together change nothing, so their mean is held as well.
    moves = torch.cat([x.new_full((1,), float(free)), x.new_full((outcomes,), float(biases))])

    def log_probabilities(at: Tensor) -> Tensor:
        return (at[0] * x + at[1:]).log_softmax(-1)

    def loss(at: Tensor) -> Tensor:
        return -(target * log_probabilities(at)).sum(-1).mean()

    value = loss(point)
    for _ in range(STEPS):
        p = log_probabilities(point).exp()
        mean = (p * x).sum(-1, keepdim=True)  # of x under p
        centred = x - mean
        gradient = torch.cat([((p - target) * x).sum(-1).mean()[None], (p - target).mean(0)]) * moves
        across = (p * centred).mean(0)
        hessian = torch.block_diag((p * centred.square()).sum(-1).mean(), p.mean(0).diag() - p.T @ p / len(p))
        hessian[0, 1:] = hessian[1:, 0] = across
        hessian = hessian * moves * moves[:, None]
        hessian[1:, 1:] += biases / outcomes
        damped = hessian + torch.diag(1e-12 + (1 - moves))
        step = -torch.linalg.solve(damped, gradient)
        gain = float(-(gradient @ step))
        if gain < ENOUGH:
            break
        length = 1.0
        while length > 1e-10 and not (near := loss(point + length * step)) <= value - 1e-4 * length * gain:
            length /= 2
        if length <= 1e-10:
            break  # rounding hides what is left to gain
        point, value = point + length * step, near
    return float(point[0]), point[1:]


MIXED = 1e-3  # of the uniform, so that no answer is impossible
MIXES = 5  # ways to give a query the answers of another
SPARE = 100  # examples that zero-shot is recalibrated on


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


def raw_share(own: Tensor, zero: Tensor, again: Tensor | None = None) -> Tensor:
    """Each query's part in 1 - mean KL(own) / mean KL(zero-shot), from the KL to ICL of each: [queries].

    Their mean is the share. NaN where zero-shot is no further from ICL than ICL is from itself after other
    demonstrations (``again``).

    >>> raw_share(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0])).tolist()
    [1.0, 0.5]
    >>> raw_share(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([4.0])).tolist()
    [nan]
    """
    whole = zero.mean()
    if not whole > 0 or (again is not None and whole <= again.mean()):
        return torch.full_like(own, torch.nan)
    return (zero - own) / whole


def left_unexplained(target: Tensor, scores: Tensor, biases: bool = True) -> Tensor:
    """KL(ICL || p'), p' the scores after the inverse temperature and the biases that suit them best: [queries]."""
    found = calibration(target, scores, biases).apply(scores)
    target = target.cpu()
    return (target * (target.log() - found)).sum(-1)


def of_other_queries(target: Tensor, scores: Tensor) -> Tensor:
    """The same of the answers that a learner gives to other queries, mean over some ways to mix them up: [queries]."""
    count = len(scores)
    steps = sorted({1 + i * (count - 1) // MIXES for i in range(MIXES)}) if count > 1 else []
    if not steps:
        return torch.full((count,), torch.nan, dtype=torch.float64)
    return torch.stack([left_unexplained(target, scores.roll(step, 0)) for step in steps]).mean(0)


def _combine(sums: np.ndarray) -> np.ndarray:
    """From the sums of (what is left, zero-shot's, 1)."""
    return share_of(sums[..., 0] / sums[..., 2], sums[..., 1] / sums[..., 2])


def _share(name: str, left: Tensor, whole: Tensor, of: LearnerSpec | str) -> Iterator[Values]:
    """A share and its numerator, whichever of the two was asked for: a run sums both over its seeds."""
    yield Pooled(name, torch.stack([left, whole, torch.ones_like(left)], -1), _combine, of)
    yield PerQuery(SHARES[name].left, left, of)


def _each_once(case: Case, functions: Mapping[str, Function]) -> Iterable[Values]:
    """What several shares are made of stands once."""
    found: dict[Any, Values] = {}
    for function in dict.fromkeys(functions.values()):
        for values in function(case):
            found.setdefault((type(values), values.metric, values.reference), values)
    return found.values()


BELOW_ONE = (-math.inf, 1.0)
share = partial(metric, together=_each_once, by_subset=False)
of_pairs = partial(share, applies=lambda case: case.is_pair)


def _icl(case: Case) -> Tensor:
    return distribution(case.reference.label_logprobs)


def _whole(case: Case) -> Tensor:
    return left_unexplained(_icl(case), case.zero_shot.label_logprobs)


@of_pairs("kl_icl", "K(g)", "nats from ICL that the learner leaves, after temperature and biases", within=SIZE)
@of_pairs(
    "explained",
    "1 - sum K(g) / sum K(z), K(x) = min over t, b of KL(p_icl || softmax(t log p_x + b)), 0 <= t <= 20",
    "share of ICL's change of the label probabilities that the learner makes too, beyond temperature and biases",
    within=BELOW_ONE,
    title="Explained of the predictions",
)
def explained(case: Case) -> Iterator[Values]:
    yield from kl_icl_zero_shot(case)
    left = left_unexplained(_icl(case), case.trace.label_logprobs)
    yield from _share("explained", left, case.shared(_whole), case.against.learning)


@of_pairs(
    "kl_icl_mismatched", "K(g of other queries)", "nats from ICL that answers to other queries leave", within=SIZE
)
@of_pairs(
    "explained_mismatched",
    "explained, by the answers that the learner gives to other queries",
    "null: what the learner's answers explain when they are those to other queries",
    within=BELOW_ONE,
)
def explained_mismatched(case: Case) -> Iterator[Values]:
    yield from kl_icl_zero_shot(case)
    left = of_other_queries(_icl(case), case.trace.label_logprobs)
    yield from _share("explained_mismatched", left, case.shared(_whole), case.against.learning)


@of_pairs("kl_icl_zero_shot", "K(z)", "nats from ICL that zero-shot leaves, after temperature and biases", within=SIZE)
def kl_icl_zero_shot(case: Case) -> Iterator[Values]:
    yield PerQuery("kl_icl_zero_shot", case.shared(_whole), case.against.learning)


def _has_next(case: Case) -> bool:
    traces = (case.trace, case.reference, case.zero_shot)
    return case.is_pair and case.has_attention and all("next_logprobs" in t.extras for t in traces)


of_next_tokens = partial(share, applies=_has_next, default=False, wants=frozenset({"next_tokens"}))


@of_next_tokens(
    "kl_next_token_zero_shot",
    "K(z) over next tokens, without biases",
    "nats from ICL's next tokens that zero-shot leaves, after a temperature",
    within=SIZE,
)
@of_next_tokens(
    "kl_next_token",
    "K(g) over next tokens, without biases",
    "nats from ICL's next tokens that the learner leaves, after a temperature",
    within=SIZE,
)
@of_next_tokens(
    "explained_next_token",
    "explained with a temperature and no biases, over ICL's 100 likeliest next tokens and one bucket for the rest",
    "share of ICL's change of the next token's probabilities that the learner makes too",
    within=BELOW_ONE,
)
def explained_next_token(case: Case) -> Iterator[Values]:
    target = distribution(next_tokens(case.reference))
    left, whole = (left_unexplained(target, next_tokens(trace), biases=False) for trace in (case.trace, case.zero_shot))
    yield PerQuery("kl_next_token_zero_shot", whole, case.against.learning)
    yield from _share("explained_next_token", left, whole, case.against.learning)


@of_pairs(
    "explained_raw",
    "1 - mean KL(p_icl || p) / mean KL(p_icl || p_zero_shot), over the classes",
    "explained without temperature and biases, where calibration counts as explanation",
    within=BELOW_ONE,
    default=False,
)
def explained_raw(case: Case) -> Iterator[Values]:
    target = _icl(case)

    def apart(trace: Trace) -> Tensor:
        return divergence(target, distribution(trace.label_logprobs).to(target.device))

    redraw = IN_CONTEXT.under("redraw")
    redrawn = [other.trace for other in (case.own, *case.others) if other.learning == redraw]
    again = apart(redrawn[0]) if redrawn else None
    yield PerQuery("explained_raw", raw_share(apart(case.trace), apart(case.zero_shot), again), case.against.learning)


SPARE_TRACE = "spare"


def read_spare(bench: Bench, case: Case, _names: Collection[str]) -> dict[str, Trace]:
    """Zero-shot's answers to spare examples, where enough are spare."""
    if not case.is_reference or len(bench.spare) < SPARE:
        return {}
    spare = bench.materials(SPARE, "zero-shot recalibrated")
    return {SPARE_TRACE: bench.once("spare zero-shot", lambda: bench.model.read(spare))}


def _nulls(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Answers that know nothing of the demonstrations' content, by what they are called: [queries, classes] each."""
    zero = wide(case.zero_shot.label_logprobs).cpu()
    yield "uniform", torch.zeros_like(zero)
    if case.lesson is not None:
        taught = torch.tensor([d.label_index for d in case.lesson.demonstrations])
        shares = F.one_hot(taught, zero.shape[-1]).double().mean(0)
        yield "label frequencies", distribution((shares + 1e-300).log()).log().expand_as(zero)
    if (spare := case.read.get(SPARE_TRACE)) is not None:
        gold = F.one_hot(spare.labels.cpu(), zero.shape[-1]).double()
        gold = (1 - MIXED) * gold + MIXED / gold.shape[-1]
        yield "zero-shot recalibrated", calibration(gold, spare.label_logprobs).apply(zero)


of_nulls = partial(share, applies=lambda case: case.is_reference, default=False, reading=read_spare)


@of_nulls("kl_icl_null", "K(null)", "nats from ICL that a null leaves; `reference` names it", within=SIZE)
@of_nulls(
    "explained_null",
    "explained, by answers that know nothing of the demonstrations' content; `reference` names them",
    "null: uniform, the demonstrations' label frequencies, zero-shot recalibrated on spare examples",
    within=BELOW_ONE,
)
def explained_null(case: Case) -> Iterator[Values]:
    """What is known without in-context learning, by in-context learning's own cell."""
    target = distribution(case.trace.label_logprobs).cpu()
    whole = left_unexplained(target, case.zero_shot.label_logprobs)
    yield PerQuery("kl_icl_zero_shot", whole, case.against.learning)
    for called, scores in _nulls(case):
        yield from _share("explained_null", left_unexplained(target, scores), whole, called)


@of_nulls(
    "explained_raw_null",
    "explained_raw, by the same answers",
    "null of explained_raw: what calibration alone would be said to explain",
    within=BELOW_ONE,
)
def explained_raw_null(case: Case) -> Iterator[Values]:
    target = distribution(case.trace.label_logprobs).cpu()
    raw = divergence(target, distribution(case.zero_shot.label_logprobs).cpu())
    for called, scores in _nulls(case):
        yield PerQuery("explained_raw_null", raw_share(divergence(target, distribution(scores)), raw), called)


alike = partial(metric, applies=lambda case: case.is_pair, by_subset=False)


@alike(
    "agreement",
    "|prediction = ICL's| / queries",
    "share of queries where the learner answers as ICL does",
    within=SHARE,
)
def agreement(case: Case) -> Values:
    return PerQuery("agreement", case.trace.predictions == case.reference.predictions, case.against.learning)


def kappa(sums: np.ndarray) -> np.ndarray:
    """Cohen's, from the sums of (agree, 1, then each label by the learner, then by ICL); NaN where both always say one.

    >>> float(kappa(np.array([3.0, 4.0, 2.0, 2.0, 3.0, 1.0])))
    0.5
    """
    ours, theirs = np.split(sums[..., 2:], 2, axis=-1)
    agree, count = sums[..., 0], sums[..., 1]
    chance = ratio((ours * theirs).sum(-1), count**2)
    return ratio(ratio(agree, count) - chance, 1 - chance)


@alike(
    "agreement_kappa",
    "(agreement - e) / (1 - e), e what independent answers of these frequencies agree in",
    "agreement above chance (Cohen's kappa)",
    within=COSINE,
)
def agreement_kappa(case: Case) -> Values:
    own, icl = case.trace.predictions, case.reference.predictions
    classes = case.trace.label_logprobs.shape[-1]
    said = [F.one_hot(one.cpu(), classes).double() for one in (own, icl)]
    agree = (own.cpu() == icl.cpu()).double()[:, None]
    parts = torch.cat([agree, torch.ones_like(agree), *said], -1)
    return Pooled("agreement_kappa", parts, kappa, case.against.learning)


@metric(
    "topk_overlap",
    "|top 10 & ICL's top 10| / 10, of the next tokens",
    "overlap of the ten likeliest next tokens",
    applies=lambda case: _has_next(case) and "top_tokens" in case.trace.extras,
    within=SHARE,
    by_subset=False,
    default=False,
    wants=frozenset({"next_tokens"}),
)
def topk_overlap(case: Case) -> Values:
    ours, theirs = case.trace.extras["top_tokens"], case.reference.extras["top_tokens"]
    shared = (ours[:, :, None] == theirs[:, None, :]).any(-1).double().mean(-1)
    return PerQuery("topk_overlap", shared, case.against.learning)


ORDERS = 5  # the fewest whose spread is a number


def order_sensitivity(traces: list[Trace]) -> Tensor:
    """The standard deviation over orders of the right label's probability: [queries]."""
    right = [wide(t.label_logprobs).softmax(-1).gather(-1, t.labels[:, None]).squeeze(-1) for t in traces]
    return torch.stack(right).std(0)


def _reordered(case: Case) -> list[Trace]:
    return [other.trace for other in case.others if other.learning.is_reordered(case.learning)]


@metric(
    "order_sensitivity",
    "std over reorderings of the right label's probability",
    "how much the order of the demonstrations matters to the learner",
    applies=lambda case: not case.is_baseline and len(_reordered(case)) >= ORDERS,
    within=SIZE,
    by_subset=False,
    default=False,
    needs_gold=True,
)
def spread_over_orders(case: Case) -> Values:
    return PerQuery("order_sensitivity", order_sensitivity(_reordered(case)))
