"""tau-b against scipy, and the Kendall metrics against plain loops."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from dualscope.metrics.case import Case
from dualscope.metrics.demonstrations import KENDALL_QUERIES, shared_tokens
from dualscope.metrics.kendall import tau_b
from dualscope.metrics.rows import compute, measure
from dualscope.tasks.lesson import DemonstrationTokens
from tests.metrics.cases import HEADS, LAYERS, WIDTH, case_of, gradient, random_trace, result


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=70))
def test_tau_agrees_with_scipy_on_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, float).T
    ours = tau_b(torch.tensor(x), torch.tensor(y)).item()
    np.testing.assert_allclose(ours, kendalltau(x, y).statistic, atol=1e-12)


@pytest.mark.parametrize("items", [2, 15, 16, 17, 64, 300])
def test_tau_agrees_with_scipy_on_many_rows(items: int) -> None:
    generator = torch.Generator().manual_seed(items)
    x, y = (torch.randn(3, 4, items, generator=generator) for _ in range(2))
    y = y + x * torch.linspace(-2, 2, 4)[:, None]
    plain = [
        [kendalltau(a, b).statistic for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(tau_b(x, y), plain, atol=1e-12)


def test_tau_of_nothing_is_undefined() -> None:
    x = torch.tensor([[1.0, 1.0, 1.0], [1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]])
    y = torch.tensor([1.0, 2.0, 3.0]).expand(3, 3)
    assert tau_b(x, y).isnan().tolist() == [True, True, False]
    assert tau_b(torch.ones(2, 1), torch.ones(2, 1)).isnan().all()


@dataclass
class Lesson:
    """As much of a lesson as the metric looks at."""

    demonstrations: tuple[DemonstrationTokens, ...]
    training: tuple[DemonstrationTokens, ...]


def lesson(bos: int = 1, separator: int = 1) -> tuple[Lesson, int]:
    start, shown = bos, []
    for index, (prompt, label) in enumerate([(4, 1), (6, 2), (3, 1)]):
        shown.append(DemonstrationTokens(f"train:{index}", 0, (7,) * prompt, (8,) * label, start))
        start += prompt + label + separator
    left_out = DemonstrationTokens("train:9", 0, (7,) * 5, (8,), -1)  # GD saw it, the context had no room
    return Lesson(tuple(shown), (*shown, left_out)), start


def test_tokens_are_paired_whatever_was_recorded() -> None:
    made, _ = lesson()
    first = shared_tokens(made, 5 + 8 + 4 + 6)
    assert first is not None
    context, training = first
    assert context[:4] == [2, 3, 4, 5]  # BOS at 0, the demonstration's first token at 1
    assert context[4:6] == [8, 9]  # the separator at 6, the next demonstration's first token at 7
    assert training == [1, 2, 3, 4, *range(6, 13), *range(14, 17)]
    assert shared_tokens(made, 23 - 4) == (context, [0, 1, 2, 3, *range(4, 11), *range(11, 14)])
    only_labels = shared_tokens(made, 1 + 2 + 1 + 1)
    assert only_labels == ([5, 13, 14, 19], [0, 1, 2, 3])
    assert shared_tokens(made, 99) is None


def kendall_case() -> Case:
    made, length = lesson()
    generator = torch.Generator().manual_seed(0)
    z, c, g = (random_trace(i, queries=70) for i in range(3))
    c.extras["context_scores"] = torch.randn(70, LAYERS, length, generator=generator)
    g.extras["query_vectors"] = torch.randn(70, LAYERS, HEADS * 4, generator=generator)
    g.extras["layer_inputs"] = torch.randn(70, LAYERS, WIDTH, generator=generator)
    records = {
        "queries": torch.randn(LAYERS, 23, HEADS * 4, generator=generator),
        "inputs": torch.randn(LAYERS, 23, WIDTH, generator=generator),
    }
    return case_of(z, c, gradient(g, records=records), lesson=made)  # type: ignore[arg-type]


def test_metrics_agree_with_loops() -> None:
    case = kendall_case()
    found = {v.metric: v.values for v in compute(case, ["kendall", "kendall_dual", "kendall_recency"])}
    records, extras = case.learned.log.records, case.trace.extras
    context, training = shared_tokens(case.lesson, 23)
    for i, k in ((0, 0), (5, 2), (63, 1)):
        icl = case.reference.extras["context_scores"][i, k, context].double().numpy()
        for name, record, extra in (
            ("kendall", "queries", "query_vectors"),
            ("kendall_dual", "inputs", "layer_inputs"),
        ):
            gd = [float(records[record][k, t].double() @ extras[extra][i, k].double()) for t in training]
            assert found[name][i, k].item() == pytest.approx(kendalltau(icl, gd).statistic)
        recency = kendalltau(icl, range(len(context))).statistic
        assert found["kendall_recency"][i, k].item() == pytest.approx(recency)


def test_the_first_queries_are_counted() -> None:
    names = ["kendall", "kendall_dual", "kendall_random", "kendall_shift", "kendall_recency"]
    rows = [row for row in measure(kendall_case(), names).rows if row["layer"] is None]
    assert [row["metric"] for row in rows] == names
    assert {row["n"] for row in rows} == {KENDALL_QUERIES}
    assert all(abs(row["value"]) < 0.15 for row in rows)  # nothing is related here


def test_shift_keeps_what_is_in_place_apart() -> None:
    """ICL scores that are GD's: tau is 1, and the shifted null is not."""
    case = kendall_case()
    context, training = shared_tokens(case.lesson, 23)
    gd = torch.einsum(
        "ltd,qld->qlt", case.learned.log.records["queries"][:, training], case.trace.extras["query_vectors"]
    )
    scores = case.reference.extras["context_scores"].clone()
    scores[..., context] = gd
    case = replace(
        case, against=result(replace(case.reference, extras={"context_scores": scores}), "in-context")
    )
    rows = {
        r["metric"]: r["value"]
        for r in measure(case, ["kendall", "kendall_shift"]).rows
        if r["layer"] is None
    }
    assert rows["kendall"] > 0.99
    assert abs(rows["kendall_shift"]) < 0.2


def test_learners_of_other_demonstrations_have_no_tau() -> None:
    case = kendall_case()
    assert measure(case, ["kendall"]).rows
    own = replace(case.own, learning=case.learning.under("reorder"))
    assert not measure(replace(case, own=own), ["kendall"]).rows
