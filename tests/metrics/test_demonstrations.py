"""tau-b against scipy, and the Kendall metrics against plain loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from dualscope.metrics.case import Case
from dualscope.metrics.demonstrations import (
    KENDALL_QUERIES,
    TOP,
    Places,
    by_demonstration,
    shared_tokens,
    shifted,
    tau_b,
)
from dualscope.metrics.measured import compute, measure
from dualscope.tasks.lesson import DemonstrationTokens, Lesson
from tests.metrics.cases import HEADS, LAYERS, WIDTH, case_of, gradient, random_trace, result
from tests.models.lessons import random_lesson


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
    plain = [[kendalltau(a, b).statistic for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]
    np.testing.assert_allclose(tau_b(x, y), plain, atol=1e-12)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=2, max_size=70))
def test_hidden_items_do_not_count(items: list[tuple[int, int, bool]]) -> None:
    x, y, hidden = (np.array(column) for column in zip(*items, strict=True))
    ours = tau_b(torch.tensor(x).double(), torch.tensor(y).double(), torch.tensor(hidden)).item()
    seen = ~hidden
    plain = kendalltau(x[seen], y[seen]).statistic if seen.sum() > 1 else float("nan")
    np.testing.assert_allclose(ours, plain, atol=1e-12)


def test_what_is_hidden_may_be_anything() -> None:
    x = torch.tensor([3.0, torch.nan, 1.0, 2.0], dtype=torch.float64)
    y = torch.tensor([3.0, torch.inf, 2.0, 1.0], dtype=torch.float64)
    assert tau_b(x, y).isnan()
    hidden = torch.tensor([False, True, False, False])
    assert tau_b(x, y, hidden).item() == pytest.approx(1 / 3)


def test_tau_of_nothing_is_undefined() -> None:
    x = torch.tensor([[1.0, 1.0, 1.0], [1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]])
    y = torch.tensor([1.0, 2.0, 3.0]).expand(3, 3)
    assert tau_b(x, y).isnan().tolist() == [True, True, False]
    assert tau_b(torch.ones(2, 1), torch.ones(2, 1)).isnan().all()


EVERY = [
    "kendall",
    "kendall_dual",
    "kendall_random",
    "kendall_shift",
    "kendall_recency",
    "kendall_demonstrations",
    "kendall_recall",
    "kendall_recall_chance",
    "kendall_raw",
]


def lesson(bos: int = 1, separator: int = 1) -> tuple[Lesson, int]:
    start, shown = bos, []
    for index, (prompt, label) in enumerate([(4, 1), (6, 2), (3, 1)]):
        shown.append(DemonstrationTokens(f"train:{index}", 0, (7,) * prompt, (8,) * label, start))
        start += prompt + label + separator
    left_out = DemonstrationTokens("train:9", 0, (7,) * 5, (8,), -1)  # GD saw it, the context had no room
    return replace(random_lesson(), demonstrations=tuple(shown), training=(*shown, left_out)), start


def test_tokens_are_paired_whatever_was_recorded() -> None:
    made, _ = lesson()
    whole = shared_tokens(made, 5 + 8 + 4 + 6)
    assert whole is not None
    # BOS at 0, a separator at 6 and at 15: every other token of the context counts, the first of each too.
    assert whole.context == [*range(1, 6), *range(7, 15), *range(16, 20)]
    assert whole.training == list(range(17))  # what was learned and not shown comes last
    assert whole.owner == [0] * 5 + [1] * 8 + [2] * 4
    no_first = shared_tokens(made, 23 - 4)
    assert no_first == Places(
        [*range(2, 6), *range(8, 15), *range(17, 20)], list(range(14)), [0] * 4 + [1] * 7 + [2] * 3
    )
    assert shared_tokens(made, 1 + 2 + 1 + 1) == Places([5, 13, 14, 19], [0, 1, 2, 3], [0, 1, 1, 2])
    assert shared_tokens(made, 99) is None


def test_a_label_word_of_another_length_is_paired_as_far_as_both_go() -> None:
    """Under random labels GD may be taught a longer word than the context shows, or a shorter one."""
    made, _ = lesson()
    longer, shorter = (replace(made.training[i], label=label) for i, label in ((0, (8, 8)), (1, (8,))))
    found = shared_tokens(replace(made, training=(longer, shorter, *made.training[2:])), 23)
    assert found is not None
    assert found.context == [*range(1, 6), *range(7, 14), *range(16, 20)]
    assert found.training == [*range(5), *range(6, 13), *range(13, 17)]


def kendall_case() -> Case:
    made, length = lesson()
    generator = torch.Generator().manual_seed(0)
    z, c, g = (random_trace(i, queries=70) for i in range(3))
    c.extras["context_scores"] = torch.randn(70, LAYERS, length, generator=generator)
    c.extras["context_products"] = torch.randn(70, LAYERS, length, generator=generator)
    c.extras["context_scores"][:, 1, :9] = torch.nan  # a window of layer 1
    g.extras["query_vectors"] = torch.randn(70, LAYERS, HEADS * 4, generator=generator)
    g.extras["layer_inputs"] = torch.randn(70, LAYERS, WIDTH, generator=generator)
    records = {
        "queries": torch.randn(LAYERS, 23, HEADS * 4, generator=generator),
        "inputs": torch.randn(LAYERS, 23, WIDTH, generator=generator),
    }
    return case_of(z, c, gradient(g, records=records), lesson=made)


def places_of(case: Case) -> Places:
    assert case.lesson is not None
    found = shared_tokens(case.lesson, 23)
    assert found is not None
    return found


def test_metrics_agree_with_loops() -> None:
    case = kendall_case()
    found = {v.metric: v.values for v in compute(case, EVERY)}  # type: ignore[union-attr]
    records, extras, places = case.learned.log.records, case.trace.extras, places_of(case)
    for i, k in ((0, 0), (5, 2), (63, 1)):
        seen = [n for n, place in enumerate(places.context) if k != 1 or place >= 9]
        scores = case.reference.extras["context_scores"][i, k].double()
        icl = [float(scores[places.context[n]]) for n in seen]

        def products(record: str, extra: str, which: list[int], k: int = k, i: int = i) -> list[float]:
            now = extras[extra][i, k].double()
            return [float(records[record][k, places.training[n]].double() @ now) for n in which]

        gd = products("queries", "query_vectors", seen)
        dual = products("inputs", "layer_inputs", seen)
        assert found["kendall"][i, k].item() == pytest.approx(kendalltau(icl, gd).statistic)
        assert found["kendall_dual"][i, k].item() == pytest.approx(kendalltau(icl, dual).statistic)
        recency = kendalltau(icl, seen).statistic
        assert found["kendall_recency"][i, k].item() == pytest.approx(recency)
        everything = list(range(len(places.context)))
        raw = case.reference.extras["context_products"][i, k, places.context].double().tolist()
        whole = products("queries", "query_vectors", everything)
        assert found["kendall_raw"][i, k].item() == pytest.approx(kendalltau(raw, whole).statistic)
        moved = [[float(scores[n]) for n in seen] for scores in shifted(torch.tensor(whole), case.seed)]
        shift = np.mean([kendalltau(icl, scores).statistic for scores in moved])
        assert found["kendall_shift"][i, k].item() == pytest.approx(shift)
        top = [set(np.argsort(values)[-TOP:].tolist()) for values in (icl, gd)]
        share = len(top[0] & top[1]) / min(TOP, len(seen))
        assert found["kendall_recall"][i, k].item() == pytest.approx(share)
        assert found["kendall_recall_chance"][i, k].item() == pytest.approx(min(TOP, len(seen)) / len(seen))
        shown = sorted({places.owner[n] for n in seen})
        means = [
            [np.mean([values[m] for m, n in enumerate(seen) if places.owner[n] == own]) for own in shown]
            for values in (icl, gd)
        ]
        by_demonstration = kendalltau(*means).statistic
        assert found["kendall_demonstrations"][i, k].item() == pytest.approx(by_demonstration)


def test_the_first_queries_are_counted() -> None:
    rows = {row["metric"]: row for row in measure(kendall_case(), EVERY).rows if row["layer"] is None}
    assert list(rows) == EVERY
    assert {row["n"] for row in rows.values()} == {KENDALL_QUERIES}
    nothing_is_related = [row["value"] for name, row in rows.items() if "recall" not in name]
    assert all(abs(value) < 0.15 for value in nothing_is_related)
    assert rows["kendall_recall"]["value"] == pytest.approx(rows["kendall_recall_chance"]["value"], abs=0.05)


def test_shift_keeps_what_is_in_place_apart() -> None:
    """ICL scores that are GD's: tau is 1, and the shifted null is not."""
    case = kendall_case()
    places = places_of(case)
    queries = case.learned.log.records["queries"][:, places.training]
    gd = torch.einsum("ltd,qld->qlt", queries, case.trace.extras["query_vectors"])
    scores = case.reference.extras["context_scores"].clone()
    scores[..., places.context] = gd
    case = replace(case, against=result(replace(case.reference, extras={"context_scores": scores}), "in-context"))
    rows = {
        r["metric"]: r["value"]
        for r in measure(case, ["kendall", "kendall_shift", "kendall_demonstrations", "kendall_recall"]).rows
        if r["layer"] is None
    }
    assert rows["kendall"] > 0.99
    assert rows["kendall_demonstrations"] > 0.99
    assert rows["kendall_recall"] == 1
    assert abs(rows["kendall_shift"]) < 0.2


def test_learners_of_other_demonstrations_have_no_tau() -> None:
    case = kendall_case()
    assert measure(case, ["kendall"]).rows
    own = replace(case.own, learning=case.learning.under("reorder"))
    assert not measure(replace(case, own=own), ["kendall"]).rows


def test_a_demonstration_scores_the_mean_of_its_tokens_that_are_seen() -> None:
    scores = torch.tensor([[1.0, 1.0, 1.0, 1.0, 2.0, torch.nan, 4.0]], dtype=torch.float64)
    found = by_demonstration(scores, [0, 0, 0, 0, 3, 3, 5])
    assert found.tolist() == [[1.0, 2.0, 4.0]]  # the sums would rank the first above the second
    assert by_demonstration(torch.full((1, 2), torch.nan), [0, 0]).isnan().all()
