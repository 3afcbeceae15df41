"""Prediction alignment on examples small enough to count by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualscope.core.rows import MetricRow
from dualscope.learners import Learned
from dualscope.metrics.case import Case
from dualscope.metrics.measured import measure
from dualscope.metrics.prediction import PARTITION, partition
from tests.metrics.cases import case_of, gradient, predicted_case, random_case, random_trace

# gold 0 throughout but the last; every part of the partition occurs
LABELS = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
ZERO = [1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1]
ICL = [0, 0, 0, 2, 1, 0, 1, 1, 0, 0, 1, 0]
GD = [0, 0, 2, 0, 2, 1, 0, 0, 1, 0, 1, 0]
# part: both right x2, icl right gd wrong, gd right icl wrong, both wrong, only icl right, only icl wrong,
#       only gd right, only gd wrong, neither x2, both to the same wrong label
COUNTS = [2, 1, 1, 1, 1, 1, 1, 1, 1, 2]


def rows(case: Case, **options: Any) -> dict[tuple[str, str | None], MetricRow]:
    return {(r["metric"], r["reference"]): r for r in measure(case, **options).rows if r["layer"] is None}


def test_known_counts() -> None:
    found = rows(predicted_case(LABELS, ZERO, ICL, GD))

    def value(name: str, reference: str | None = "in-context") -> float:
        return found[name, reference]["value"]

    assert [value(name) for name in PARTITION] == COUNTS
    # GD newly right: queries 0, 1, 3, 7; of these ICL is right on 0, 1
    assert value("rec2ftp") == 2 / 4
    assert found["rec2ftp", "in-context"]["n"] == 4
    assert value("jaccard") == 6 / 10
    assert value("jaccard_correct") == 2 / 6
    assert value("jaccard_incorrect") == 2 / 6
    assert value("jaccard_same") == 3 / 10
    assert value("accuracy", None) == 6 / 12
    assert value("gd_learned", "zero-shot") == pytest.approx(1 / 12)
    assert value("changed", "zero-shot") == 8 / 12
    chance = 8 * 8 / 12
    expected = chance / (16 - chance)
    assert value("jaccard_corrected") == pytest.approx((0.6 - expected) / (1 - expected))
    assert [value("predicted_share", str(k)) for k in range(3)] == [7 / 12, 3 / 12, 2 / 12]


def test_nothing_changed_is_undefined_not_zero() -> None:
    found = rows(predicted_case([0, 1], [0, 0], [0, 0], [0, 0]))
    for name in ("rec2ftp", "jaccard", "jaccard_correct", "jaccard_incorrect", "jaccard_same", "jaccard_corrected"):
        row = found[name, "in-context"]
        assert math.isnan(row["value"])
        assert math.isnan(row["low"])
    assert found["jaccard", "in-context"]["n"] == 0
    assert found["label_change_correlation", "in-context"]["value"] != 0
    assert found["partition_neither", "in-context"]["value"] == 2


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=20))
def test_partition_covers_every_query_once(picks: list[tuple[int, ...]]) -> None:
    labels, zero, icl, gd = (list(column) for column in zip(*picks, strict=True))
    parts = torch.stack(list(partition(predicted_case(labels, zero, icl, gd)).values()))
    assert parts.sum(0).tolist() == [1] * len(picks)


def test_label_changes_correlate_by_query_not_by_drift() -> None:
    generator = torch.Generator().manual_seed(0)
    z = random_trace(0, queries=300)
    drift = torch.tensor([2.0, -1.0, -1.0])  # all queries lean to class 0, in both learners

    def moved(change: torch.Tensor) -> torch.Tensor:
        return z.label_logprobs + drift + change

    own, other = (torch.randn(300, 3, generator=generator) for _ in range(2))
    c = replace(z, label_logprobs=moved(own))
    same = case_of(z, c, gradient(replace(z, label_logprobs=moved(2 * own) + 7.0)))
    apart = case_of(z, c, gradient(replace(z, label_logprobs=moved(other))))
    assert rows(same)["label_change_correlation", "in-context"]["value"] == pytest.approx(1.0, abs=1e-6)
    row = rows(apart)["label_change_correlation", "in-context"]
    assert abs(row["value"]) < 0.15
    assert row["low"] < 0 < row["high"]


def test_correlation_agrees_with_numpy() -> None:
    case = random_case(3)
    z, c, g = (t.label_logprobs.double().numpy() for t in (case.zero_shot, case.reference, case.trace))
    x, y = (a - a.mean(1, keepdims=True) for a in (c - z, g - z))
    x, y = x - x.mean(0), y - y.mean(0)
    expected = np.corrcoef(x.ravel(), y.ravel())[0, 1]
    assert rows(case)["label_change_correlation", "in-context"]["value"] == pytest.approx(expected, abs=1e-10)


def test_early_exits_are_held_against_the_gold_label() -> None:
    case = random_case(4)
    at = case.trace.label_logprobs_at_layer
    assert at is not None
    found = {r["layer"]: r["value"] for r in measure(case, ["accuracy_at_layer"]).rows}
    for layer in range(at.shape[1]):
        right = [int(at[i, layer].argmax()) == int(case.trace.labels[i]) for i in range(len(at))]
        assert found[layer] == pytest.approx(sum(right) / len(right))


def test_each_kind_of_cell_has_its_rows() -> None:
    z, c = random_trace(0), random_trace(1)
    plain = Learned(z)
    zero = {name for name, _ in rows(case_of(z, c, plain, "zero-shot"))}
    assert zero == {"accuracy", "predicted_share"}
    layered = {r["metric"] for r in measure(case_of(z, c, plain, "zero-shot")).rows if r["layer"] is not None}
    assert layered == {"accuracy_at_layer"}
    context = {name for name, _ in rows(case_of(z, c, replace(plain, trace=c), "in-context"))}
    assert context == zero | {"changed", "change_norm", "icl_learned", "sim_am_zero_shot"}
    null = rows(case_of(z, c, replace(plain, trace=c), "null-context"))
    gained = c.correct.double().mean() - z.correct.double().mean()
    assert null["null_learned", "zero-shot"]["value"] == pytest.approx(float(gained))
    assert "null_learned" not in context
    frozen = replace(plain, trace=random_trace(2), predictions_only=True)
    probe = {name for name, _ in rows(case_of(z, c, frozen, "probe"))}
    assert {"rec2ftp", "jaccard", "gd_learned"} <= probe
    assert not any(name.startswith("sim_") or name == "change_norm" for name in probe)
