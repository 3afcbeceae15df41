"""Likeness by every specification, against plain loops; the papers' own is sim_aou."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualscope.core.specification import PAPERS, SPECIFICATIONS, Specification
from dualscope.metrics.measured import measure
from dualscope.metrics.specified import specified
from tests.metrics.cases import LAYERS, WIDTH, cos, random_case


def by_loops(z: np.ndarray, c: np.ndarray, g: np.ndarray, one: Specification) -> float:
    """All [queries, layers, width]."""
    values, sizes = [], []
    for layer in range(z.shape[1]):
        left, right = c[:, layer] - z[:, layer], g[:, layer] - z[:, layer]
        sizes.append((left**2).sum() / (z[:, layer] ** 2).sum())
        if one.dimensions == "standardised":
            left, right = (d / z[:, layer].std(0) for d in (left, right))
        elif one.dimensions == "without outliers":
            kept = np.argsort(np.abs(z[:, layer]).mean(0))[: -max(1, round(0.01 * z.shape[2]))]
            left, right = left[:, kept], right[:, kept]
        if one.centring == "over queries":
            left, right = left - left.mean(0), right - right.mean(0)
        cosines = [cos(a, b) for a, b in zip(left, right, strict=True)]
        found: dict[str, float] = {
            "mean": float(np.mean(cosines)),
            "median": float(np.median(cosines)),
            "pooled": cos(left.ravel(), right.ravel()),
        }
        values.append(found[one.aggregate])
    layers = np.arange(len(values))
    weights = {
        "equal": np.ones(len(values)),
        "by ICL's change": np.array(sizes),
        "upper half": layers >= len(values) // 2,
    }
    return float(np.average(values, weights=weights[one.weights]))


def test_every_specification_by_loops() -> None:
    case = random_case(3)
    z, c, g = (t.attn_out.double().numpy() for t in (case.zero_shot, case.reference, case.trace))
    found = specified(case)
    assert len(found) == 54
    for one, value in found.items():
        assert float(value) == pytest.approx(by_loops(z, c, g, one), abs=1e-10), one


def test_the_papers_specification_is_sim_aou() -> None:
    rows = measure(random_case(5), ["sim_aou", "sim_aou_specified"]).rows
    own = next(row["value"] for row in rows if row["metric"] == "sim_aou" and row["layer"] is None)
    named = {row["reference"]: row["value"] for row in rows if row["metric"] == "sim_aou_specified"}
    assert set(named) == set(SPECIFICATIONS)
    assert named[PAPERS.name] == pytest.approx(own, abs=1e-12)


def test_a_layer_without_a_change_has_no_weight() -> None:
    case = random_case(6)
    still = case.trace.attn_out.clone()
    still[:, 1] = case.zero_shot.attn_out[:, 1]
    case = replace(
        case, own=replace(case.own, learned=replace(case.learned, trace=replace(case.trace, attn_out=still)))
    )
    z, c, g = (t.attn_out.double().numpy() for t in (case.zero_shot, case.reference, case.trace))
    moved = [layer for layer in range(LAYERS) if layer != 1]
    expected = by_loops(z[:, moved], c[:, moved], g[:, moved], PAPERS)
    assert float(specified(case)[PAPERS]) == pytest.approx(expected, abs=1e-12)


def test_one_large_dimension_does_not_carry_what_leaves_it_out() -> None:
    case = random_case(7)

    def spiked(values: float) -> None:
        for trace in (case.zero_shot, case.reference, case.trace):
            trace.attn_out[..., WIDTH // 2] = values * (1.0 if trace is case.zero_shot else 2.0)

    spiked(100.0)
    found = specified(case)
    assert float(found[PAPERS]) > 0.95
    assert abs(float(found[replace(PAPERS, dimensions="without outliers")])) < 0.7  # z is in both changes
