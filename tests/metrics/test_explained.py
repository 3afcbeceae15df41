"""How much is explained: against loops, and where there is nothing to explain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dualscope.core.learning import IN_CONTEXT, Learning
from dualscope.learners.learner import Learned, Result
from dualscope.metrics.case import Case
from dualscope.metrics.explained import distribution, divergence, order_sensitivity
from dualscope.metrics.rows import measure
from dualscope.models.trace import Trace


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
        own=Result(Learning("task-vector"), "hypothesis", Learned(own)),
        against=Result(IN_CONTEXT, "reference", Learned(icl)),
        others=others,
    )


def value(found: Case, metric: str) -> float:
    return float(measure(found, [metric], resamples=20).rows[0]["value"])


def draw(seed: int, classes: int = 3) -> Tensor:
    return torch.randn(6, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_explained_by_loops() -> None:
    icl, zero, own = draw(0), draw(1), draw(2)

    def loops(scores: Tensor) -> float:
        total = 0.0
        for p_row, q_row in zip(icl, scores, strict=True):
            p = [0.999 * math.exp(v) / sum(map(math.exp, p_row.tolist())) + 0.001 / 3 for v in p_row.tolist()]
            q = [0.999 * math.exp(v) / sum(map(math.exp, q_row.tolist())) + 0.001 / 3 for v in q_row.tolist()]
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        return total

    found = value(case(trace(own), trace(icl), trace(zero)), "explained")
    assert found == pytest.approx(1 - loops(own) / loops(zero), rel=1e-12)
    assert value(case(trace(icl), trace(icl), trace(zero)), "explained") == pytest.approx(1)
    assert value(case(trace(zero), trace(icl), trace(zero)), "explained") == pytest.approx(0)


def test_nothing_to_explain_where_icl_moves_as_much_by_other_demonstrations() -> None:
    icl, own = draw(0), draw(2)
    near, far = icl + 0.1 * draw(1), icl + 2 * draw(3)
    assert math.isnan(value(case(trace(own), trace(icl), trace(near), trace(far)), "explained"))
    assert not math.isnan(value(case(trace(own), trace(icl), trace(far), trace(near)), "explained"))


def test_another_learner_on_another_draw_is_no_ceiling() -> None:
    icl, near, far = draw(0), draw(0) + 0.1 * draw(1), draw(0) + 2 * draw(3)
    redrawn = Result(Learning("gd", "redraw"), "ceiling", Learned(trace(far)))
    found = case(trace(draw(2)), trace(icl), trace(near))
    assert not math.isnan(value(replace(found, others=(redrawn,)), "explained"))


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
        return distribution(torch.cat([likeliest, torch.log1p(-likeliest.exp().sum(-1, keepdim=True))], -1))

    target = bucketed("icl")
    expected = 1 - divergence(target, bucketed("own")).sum() / divergence(target, bucketed("zero")).sum()
    found = case(traces["own"], traces["icl"], traces["zero"])
    assert value(found, "explained_next_token") == pytest.approx(float(expected), rel=1e-10)
    shared = [
        len(set(a.tolist()) & set(b.tolist())) / 10
        for a, b in zip(vocabulary["own"].topk(10).indices, ids, strict=True)
    ]
    assert value(found, "topk_overlap") == pytest.approx(sum(shared) / 6)


def test_order_sensitivity_is_the_spread_over_orders() -> None:
    assert float(order_sensitivity([trace(draw(1))] * 5).max()) == 0
    spread = order_sensitivity([trace(draw(i)) for i in range(5)])
    right = torch.stack([draw(i).softmax(-1)[:, 0] for i in range(5)])
    torch.testing.assert_close(spread, right.std(0))
