"""How much is explained: against loops, and where there is nothing to explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.core.statistics import share_of
from dualscope.learners.learner import Learned, Result
from dualscope.metrics.case import Case
from dualscope.metrics.explained import (
    SPARE_TRACE,
    STEEPEST,
    calibration,
    distribution,
    divergence,
    next_tokens,
    order_sensitivity,
)
from dualscope.metrics.measured import measure
from dualscope.models.reading.trace import Trace


def trace(scores: Tensor, **extras: Tensor) -> Trace:
    n = len(scores)
    return Trace(
        attn_out=torch.zeros(n, 1, 2),
        attn_scores=torch.ones(n, 1, 1, 3),
        lengths=torch.full((n,), 3),
        residual=torch.zeros(n, 1, 2),
        label_logprobs=scores,
        labels=torch.zeros(n, dtype=torch.long),
        query_ids=tuple(map(str, range(n))),
        extras=extras,
    )


def case(own: Trace, icl: Trace, zero: Trace, again: Trace | None = None) -> Case:
    others = () if again is None else (Result(IN_CONTEXT.under("redraw"), "ceiling", Learned(again)),)
    return Case(
        zero_shot=zero,
        own=Result(LearnerSpec("task-vector"), "hypothesis", Learned(own)),
        against=Result(IN_CONTEXT, "reference", Learned(icl)),
        others=others,
    )


def value(found: Case, metric: str) -> float:
    rows = measure(found, [metric], resamples=20).rows
    return float(next(row["value"] for row in rows if row["metric"] == metric))


def draw(seed: int, classes: int = 3, queries: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(queries, classes, generator=generator, dtype=torch.float64)


def plain_left(icl: Tensor, scores: Tensor, biases: bool = True) -> float:
    """K by loops and scipy: the mean over queries of KL(ICL || scores after the best temperature and biases)."""
    classes = icl.shape[1]
    p = [[0.999 * math.exp(v) / sum(map(math.exp, row)) + 0.001 / classes for v in row] for row in icl.tolist()]

    def loss(point: Sequence[float]) -> float:
        total = 0.0
        for target, row in zip(p, scores.tolist(), strict=True):
            z = [point[0] * v + (point[1 + i] if biases else 0.0) for i, v in enumerate(row)]
            norm = math.log(sum(math.exp(v - max(z)) for v in z)) + max(z)
            total += sum(a * (math.log(a) - (v - norm)) for a, v in zip(target, z, strict=True))
        return total / len(p)

    bounds = [(0, 20)] + [(None, None)] * (classes if biases else 0)
    starts = ([first] + [0.0] * (len(bounds) - 1) for first in (0.0, 1.0))
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000}
    return min(float(minimize(loss, s, method="L-BFGS-B", bounds=bounds, options=options).fun) for s in starts)


def test_explained_by_loops() -> None:
    icl, zero, own = (2 * draw(i, queries=9) for i in range(3))
    own = own + icl
    found = value(case(trace(own), trace(icl), trace(zero)), "explained")
    assert found == pytest.approx(1 - plain_left(icl, own) / plain_left(icl, zero), abs=1e-7)
    assert value(case(trace(icl), trace(icl), trace(zero)), "explained") == pytest.approx(1, abs=1e-3)
    assert value(case(trace(zero), trace(icl), trace(zero)), "explained") == pytest.approx(0, abs=1e-12)


def test_rows_hold_what_a_run_sums() -> None:
    icl, zero, own = (2 * draw(i, queries=9) for i in range(3))
    found = measure(case(trace(own), trace(icl), trace(zero)), ["explained"], resamples=20)
    values = {row["metric"]: row["value"] for row in found.rows}
    assert values["kl_icl"] == pytest.approx(plain_left(icl, own), abs=1e-7)
    assert values["kl_icl_zero_shot"] == pytest.approx(plain_left(icl, zero), abs=1e-7)
    assert values["explained"] == pytest.approx(1 - values["kl_icl"] / values["kl_icl_zero_shot"])
    assert {"kl_icl", "kl_icl_zero_shot"} <= set(found.queries.column_names)
    assert "explained" not in found.queries.column_names  # it is no number of a single query


@pytest.mark.parametrize("seed", range(5))
def test_calibration_alone_explains_nothing(seed: int) -> None:
    icl, zero = 2 * draw(seed, queries=50), draw(seed + 50, queries=50) + 0.5 * draw(seed, queries=50)
    for temperature in (0.2, 1.0, 5.0):
        moved = zero * temperature + torch.tensor([2.0, 0.0, -3.0])
        assert value(case(trace(moved), trace(icl), trace(zero)), "explained") == pytest.approx(0, abs=0.01)
    raw = case(trace(0.2 * zero), trace(icl), trace(3 * zero))
    assert value(raw, "explained_raw") > 0.1  # what 0.2 called explained


@pytest.mark.parametrize("seed", range(5))
def test_the_opposite_of_icl_explains_nothing(seed: int) -> None:
    """It is as good as the same answer to every query, and so is this zero-shot."""
    icl = 2 * draw(seed, queries=50)
    said = case(trace(-icl), trace(icl), trace(torch.zeros_like(icl)))
    assert value(said, "explained") == pytest.approx(0, abs=1e-9)
    informed = case(trace(-icl), trace(icl), trace(icl + draw(seed + 9, queries=50)))
    assert value(informed, "explained") < 0


@pytest.mark.parametrize("seed", range(3))
def test_no_share_runs_to_minus_hundreds(seed: int) -> None:
    """The worst that a learner can do is to be ignored: the same answer to every query."""
    icl, zero = 2 * draw(seed, queries=40), 2 * draw(seed, queries=40) + 0.9 * draw(seed + 7, queries=40)
    least = value(in_context(icl, zero), "explained_null")
    wild = case(trace(1e4 * draw(seed + 3, queries=40)), trace(icl), trace(zero))
    assert value(wild, "explained") >= least - 1e-6
    assert value(wild, "explained_raw") < -10


def in_context(icl: Tensor, zero: Tensor, **rest: Any) -> Case:
    own = Result(IN_CONTEXT, "reference", Learned(trace(icl)))
    return Case(zero_shot=trace(zero), own=own, against=own, **rest)


def test_nothing_to_explain_where_the_context_hardly_changes_the_answers() -> None:
    icl, own = draw(0, queries=30), draw(2, queries=30)
    for size, there in ((0.05, False), (2.0, True)):
        found = case(trace(own), trace(icl), trace(icl + size * draw(1, queries=30)))
        whole = [r["value"] for r in measure(found, ["explained"]).rows if r["metric"] == "kl_icl_zero_shot"]
        assert (whole[0] >= 0.02) == there
        assert math.isfinite(value(found, "explained")) == there


def test_the_least_that_can_be_explained_is_two_hundredths_of_a_nat() -> None:
    assert math.isnan(share_of(0.0, 0.01999))
    assert float(share_of(0.005, 0.02)) == 0.75


def test_nulls_know_nothing_of_the_content() -> None:
    icl, zero = 2 * draw(0, queries=50), 2 * draw(1, queries=50) + draw(0, queries=50)
    gold = torch.randint(3, (50,), generator=torch.Generator().manual_seed(5))
    spare = replace(trace(2 * draw(3, queries=50) + 3 * F.one_hot(gold, 3)), labels=gold)
    taught = SimpleNamespace(demonstrations=[SimpleNamespace(label_index=i) for i in (0, 0, 2)])
    own = in_context(icl, zero, read={SPARE_TRACE: spare})
    object.__setattr__(own, "lesson", taught)  # all that is asked of a lesson here
    rows = measure(own, ["explained_null", "explained_raw_null"], resamples=20).rows
    found = {(row["metric"], row["reference"]): row["value"] for row in rows}
    names = ["uniform", "label frequencies", "zero-shot recalibrated"]
    constant = 1 - plain_left(icl, torch.zeros_like(icl)) / plain_left(icl, zero)
    fitted = [found["explained_null", name] for name in names]
    assert fitted == pytest.approx([constant, constant, 0.0], abs=1e-6)

    def raw(p: Tensor) -> float:
        target = distribution(icl)
        return 1 - float(divergence(target, p).sum() / divergence(target, distribution(zero)).sum())

    shares = torch.tensor([2 / 3, 0.0, 1 / 3], dtype=torch.float64)
    recalibrated = calibration(0.999 * F.one_hot(gold, 3) + 0.001 / 3, spare.label_logprobs).apply(zero)
    assert found["explained_raw_null", "uniform"] == pytest.approx(raw(torch.full_like(icl, 1 / 3)))
    mixed = 0.999 * (0.999 * shares + 0.001 / 3) + 0.001 / 3
    assert found["explained_raw_null", "label frequencies"] == pytest.approx(raw(mixed.expand_as(icl)))
    assert found["explained_raw_null", names[2]] == pytest.approx(raw(distribution(recalibrated)))


def test_answers_to_other_queries_explain_no_more_than_a_constant_one() -> None:
    icl, zero = 2 * draw(0, queries=200), draw(1, queries=200)
    own = case(trace(icl + 0.1 * draw(2, queries=200)), trace(icl), trace(zero))
    assert value(own, "explained") > 0.9
    assert value(own, "explained_mismatched") == pytest.approx(0, abs=0.05)
    one = case(trace(icl[:1]), trace(icl[:1]), trace(zero[:1]))
    assert math.isnan(value(one, "explained_mismatched"))  # there is no other query


def test_kappa_is_agreement_above_chance() -> None:
    from sklearn.metrics import cohen_kappa_score

    icl, own = draw(0, queries=80), draw(0, queries=80) + draw(1, queries=80)
    found = value(case(trace(own), trace(icl), trace(icl)), "agreement_kappa")
    assert found == pytest.approx(cohen_kappa_score(own.argmax(-1), icl.argmax(-1)))
    always = torch.tensor([[1.0, 0.0]]).double().expand(5, 2)
    assert math.isnan(value(case(trace(always), trace(always), trace(always)), "agreement_kappa"))


def test_nothing_to_explain_where_icl_moves_as_much_by_other_demonstrations() -> None:
    icl, own = draw(0), draw(2)
    near, far = icl + 0.1 * draw(1), icl + 2 * draw(3)
    assert math.isnan(value(case(trace(own), trace(icl), trace(near), trace(far)), "explained_raw"))
    assert not math.isnan(value(case(trace(own), trace(icl), trace(far), trace(near)), "explained_raw"))


def test_a_redraw_that_is_nearer_than_zero_shot_leaves_something_to_explain() -> None:
    """Also where it is more than half as far: the rule asks whether zero-shot is further, not by how much."""
    icl = draw(0, queries=40)
    target = distribution(icl)
    zero, again = icl + 1.5 * draw(1, queries=40), icl + 1.35 * draw(3, queries=40)
    far, near = (float(divergence(target, distribution(x)).mean()) for x in (zero, again))
    assert far / 2 < near < far
    own = trace(draw(2, queries=40))
    assert not math.isnan(value(case(own, trace(icl), trace(zero), trace(again)), "explained_raw"))
    assert math.isnan(value(case(own, trace(icl), trace(again), trace(zero)), "explained_raw"))


def test_another_learner_on_another_draw_is_no_ceiling() -> None:
    icl, near, far = draw(0), draw(0) + 0.1 * draw(1), draw(0) + 2 * draw(3)
    redrawn = Result(LearnerSpec("gd", "redraw"), "ceiling", Learned(trace(far)))
    found = case(trace(draw(2)), trace(icl), trace(near))
    assert not math.isnan(value(replace(found, others=(redrawn,)), "explained_raw"))


def test_next_tokens_have_a_bucket_for_the_rest() -> None:
    vocabulary = {name: torch.randn(6, 50, generator=torch.Generator().manual_seed(i)).double().log_softmax(-1)
                  for i, name in enumerate(("icl", "zero", "own"))}  # fmt: skip
    ids = vocabulary["icl"].topk(10).indices
    traces = {
        name: trace(draw(5), next_logprobs=v.gather(1, ids), top_tokens=v.topk(10).indices)
        for name, v in vocabulary.items()
    }

    def bucketed(name: str) -> Tensor:
        likeliest = vocabulary[name].gather(1, ids)
        return torch.cat([likeliest, torch.log1p(-likeliest.exp().sum(-1, keepdim=True))], -1)

    left = {name: plain_left(bucketed("icl"), bucketed(name), biases=False) for name in vocabulary}
    found = case(traces["own"], traces["icl"], traces["zero"])
    assert value(found, "explained_next_token") == pytest.approx(1 - left["own"] / left["zero"], abs=1e-7)
    shared = [
        len(set(a.tolist()) & set(b.tolist())) / 10
        for a, b in zip(vocabulary["own"].topk(10).indices, ids, strict=True)
    ]
    assert value(found, "topk_overlap") == pytest.approx(sum(shared) / 6)


@pytest.mark.parametrize("rest", [1e-3, 1e-6, 1e-9])
def test_the_bucket_is_as_small_as_what_is_left_for_it(rest: float) -> None:
    likeliest = torch.log(torch.tensor([[0.75 * (1 - rest), 0.25 * (1 - rest)]], dtype=torch.float64))
    found = next_tokens(trace(draw(0)[:1], next_logprobs=likeliest))
    assert float(found[0, -1].exp()) == pytest.approx(rest, rel=1e-6)
    full = next_tokens(trace(draw(0)[:1], next_logprobs=torch.log(torch.tensor([[0.5, 0.5]]))))
    assert torch.isfinite(full).all()  # rounding may leave nothing at all


def test_order_sensitivity_is_the_spread_over_orders() -> None:
    assert float(order_sensitivity([trace(draw(1))] * 5).max()) == 0
    spread = order_sensitivity([trace(draw(i)) for i in range(5)])
    right = torch.stack([draw(i).softmax(-1)[:, 0] for i in range(5)])
    torch.testing.assert_close(spread, right.std(0))


def drawn(seed: int, queries: int, classes: int, like: float, size: float) -> tuple[Tensor, Tensor]:
    """A target, and scores that are so much like it."""
    generator = torch.Generator().manual_seed(seed)
    icl, other = (3 * torch.randn(queries, classes, generator=generator, dtype=torch.float64) for _ in "12")
    return 0.999 * icl.softmax(-1) + 0.001 / classes, size * (other + like * icl)


def plain_divergence(target: Tensor, found: Tensor) -> float:
    return float((target * (target.log() - found)).sum(-1).mean())


def by_scipy(target: Tensor, scores: Tensor, biases: bool) -> float:
    p, x = target.numpy(), scores.numpy()
    classes = x.shape[1]

    def loss(point: np.ndarray) -> float:
        z = point[0] * x + (point[1:] if biases else 0.0)
        z = z - z.max(-1, keepdims=True)
        return float((p * (np.log(p) - z + np.log(np.exp(z).sum(-1, keepdims=True)))).sum(-1).mean())

    bounds = [(0.0, STEEPEST)] + [(None, None)] * (classes if biases else 0)
    starts = ([start] + [0.0] * (len(bounds) - 1) for start in (0.0, 0.01, 1.0, STEEPEST))
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    found = (minimize(loss, s, method="L-BFGS-B", bounds=bounds, options=options) for s in starts)
    return float(min(one.fun for one in found))


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("like", "queries", "classes"), [(0.0, 5, 2), (1.0, 60, 3), (-1.0, 60, 2), (3.0, 300, 6)])
def test_nothing_is_nearer(like: float, queries: int, classes: int, size: float, biases: bool) -> None:
    target, scores = drawn(queries, queries, classes, like, size)
    own = calibration(target, scores, biases)
    assert 0 <= own.slope <= STEEPEST
    found, best = plain_divergence(target, own.apply(scores)), by_scipy(target, scores, biases)
    assert found <= best + 1e-9
    assert found >= best - 1e-6  # scipy stops a little early


def test_a_slope_stays_within_its_bounds() -> None:
    target, _ = drawn(1, 40, 3, 0.0, 1.0)
    assert calibration(target, -target.log()).slope == 0.0
    assert calibration(target, target.log() / 50).slope == STEEPEST
    held = calibration(target, target.log() / 50, biases=False)
    torch.testing.assert_close(held.biases, torch.zeros(3, dtype=torch.float64))
    assert held.slope == STEEPEST


def test_scores_that_say_nothing_get_the_targets_mean() -> None:
    target, _ = drawn(2, 40, 3, 0.0, 1.0)
    for scores in (torch.zeros(40, 3), torch.ones(40, 1) * torch.tensor([3.0, 0.0, -1.0])):
        found = calibration(target, scores).apply(scores).exp()
        torch.testing.assert_close(found, target.mean(0).expand_as(found), atol=1e-7, rtol=0)


def test_an_answer_that_is_sure_and_wrong_does_not_outweigh_all_others() -> None:
    target, scores = drawn(3, 60, 2, 2.0, 1.0)
    scores[0] = torch.tensor([1e6, -1e6], dtype=torch.float64) * (1 if target[0, 1] > 0.5 else -1)
    constant = plain_divergence(target, target.mean(0).log().expand_as(target))
    assert plain_divergence(target, calibration(target, scores).apply(scores)) <= constant + 1e-9
