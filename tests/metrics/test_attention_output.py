"""Similarities of attention outputs and maps against plain loops in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch

from dualscope.core.spec import LearnerSpec
from dualscope.core.words import PAPERS, SPECIFICATIONS, Specification
from dualscope.learners.learner import Learned, Result
from dualscope.metrics.attention_output import (
    sim_aou,
    sim_aou_norm,
    sim_aou_random,
    sim_aou_random_code,
    sim_aou_random_text,
    specified,
)
from dualscope.metrics.case import Case, PerQuery
from dualscope.metrics.measured import compute, measure
from tests.metrics.cases import (
    HEADS,
    LAYERS,
    QUERIES,
    WIDTH,
    case_of,
    cos,
    gradient,
    per_query,
    random_case,
    random_trace,
    result,
)


def values(case: Case, name: str, reference: str | None = None) -> np.ndarray:
    found = [v for v in compute(case, [name]) if reference is None or v.reference == LearnerSpec(reference)]
    assert len(found) == 1, found
    assert isinstance(found[0], PerQuery)
    return found[0].values.numpy()


def arrays(case: Case, field: str) -> list[np.ndarray]:
    return [getattr(t, field).double().numpy() for t in (case.zero_shot, case.reference, case.trace)]


def own(scores: np.ndarray, length: int) -> np.ndarray:
    return scores[len(scores) - length :]


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    shares: np.ndarray = weights / weights.sum()
    return shares


def norm(vector: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vector / np.linalg.norm(vector)
    return unit


OUTPUTS: dict[str, Callable[..., float]] = {
    "change_norm": lambda z, c, g, i, k: float(np.linalg.norm(g[i, k] - z[i, k]) / np.linalg.norm(z[i, k])),
    "sim_aou": lambda z, c, g, i, k: cos(c[i, k] - z[i, k], g[i, k] - z[i, k]),
    "sim_aou_norm": lambda z, c, g, i, k: cos(norm(c[i, k]) - norm(z[i, k]), norm(g[i, k]) - norm(z[i, k])),
    "sim_aou_centered": lambda z, c, g, i, k: cos(
        c[i, k] - z[i, k] - (c - z)[:, k].mean(0), g[i, k] - z[i, k] - (g - z)[:, k].mean(0)
    ),
    "sim_aou_mismatched": lambda z, c, g, i, k: fmean(
        [cos(c[i, k] - z[i, k], g[j, k] - z[j, k]) for j in range(len(z)) if j != i]
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_agree_with_loops(name: str) -> None:
    case = random_case(1)
    z, c, g = arrays(case, "attn_out")
    plain = [[OUTPUTS[name](z, c, g, i, k) for k in range(LAYERS)] for i in range(QUERIES)]
    np.testing.assert_allclose(values(case, name), plain, atol=1e-10)


MAPS = {
    "sim_am": lambda z, c, g: cos(c, g),
    "sim_am_delta": lambda z, c, g: cos(c - z, g - z),
    "sim_am_softmax": lambda z, c, g: cos(softmax(c), softmax(g)),
    "sim_am_centered": lambda z, c, g: cos(c - c.mean(), g - g.mean()) if len(c) > 1 else np.nan,
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("relative", [False, True])
def test_maps_agree_with_loops_on_ragged_queries(name: str, relative: bool) -> None:
    case = random_case(2, relative=relative)
    z, c, g = arrays(case, "attn_scores")
    plain = np.full((QUERIES, LAYERS, HEADS), np.nan)
    for i, length in enumerate(case.trace.lengths.tolist()):
        for k in range(LAYERS):
            for h in range(HEADS):
                if not (relative and name == "sim_am_delta" and k == 0):
                    plain[i, k, h] = MAPS[name](*(own(a[i, k, h], length) for a in (z, c, g)))
    np.testing.assert_allclose(values(case, name), plain, atol=1e-10)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*OUTPUTS, *MAPS, "sim_aou_random"]
    whole = {v.metric: v.values for v in per_query(random_case(3), names)}
    monkeypatch.setattr("dualscope.metrics.cosine.CPU_CHUNK", 1)
    for part in per_query(random_case(3), names):
        torch.testing.assert_close(part.values, whole[part.metric], equal_nan=True)


def test_zero_shot_map_is_the_context_cells() -> None:
    z, c = random_trace(0), random_trace(1)
    case = case_of(z, c, c, "in-context")
    plain = values(case_of(z, z, gradient(c), "gd", "zero-shot"), "sim_am")
    np.testing.assert_allclose(values(case, "sim_am_zero_shot"), plain)
    assert not list(compute(case, ["sim_aou", "sim_am", "rec2ftp"]))  # nothing to compare with


@pytest.mark.parametrize("relative", [False, True])
def test_a_learner_against_itself_scores_one(relative: bool) -> None:
    z, c = random_trace(0), random_trace(1)
    c.extras["direct_attn_out"] = c.attn_out
    case = case_of(z, c, gradient(c), relative_positions=relative, others=(result(gradient(c), "lcgd"),))
    names = ["sim_aou", "sim_aou_norm", "sim_aou_centered", "sim_aou_direct", *MAPS, "alpha"]
    for found in per_query(case, names):
        defined = found.values[torch.isfinite(found.values)]
        assert len(defined) > QUERIES
        torch.testing.assert_close(defined, torch.ones_like(defined))


def test_quarter() -> None:
    """Independent random updates of three times z's squared norm: 1/4 for the older metric, 0 for ours."""
    generator = torch.Generator().manual_seed(0)

    def draw(squared: float) -> torch.Tensor:
        r = torch.randn(64, 1, 4096, generator=generator)
        return torch.nn.functional.normalize(r, dim=-1).mul(squared**0.5)

    z = draw(1.0)
    c, g = z + draw(3.0), z + draw(3.0)
    assert sim_aou_norm(z, c, g).mean().item() == pytest.approx(0.25, abs=0.02)
    assert sim_aou(z, c, g).mean().item() == pytest.approx(0.0, abs=0.02)


def test_small_changes_survive_and_zero_changes_are_undefined() -> None:
    z = torch.zeros(2, 1, 4)
    c, g = z.clone(), z.clone()
    c[0], g[0] = 1e-30, 3e-30  # squares that float32 cannot hold
    c[1] = 1.0
    found = sim_aou(z, c, g)
    assert found[0, 0].item() == pytest.approx(1.0)
    assert found[1, 0].isnan()
    c[0, 0, 0] = torch.inf
    assert sim_aou(z, c, g)[0, 0].isnan()


def test_a_constant_on_a_row_is_nothing_to_the_centered_map() -> None:
    case = random_case(4)
    shifted = replace(case, own=result(gradient(replace(case.trace, attn_scores=case.trace.attn_scores + 5.0))))
    np.testing.assert_allclose(values(case, "sim_am_centered"), values(shifted, "sim_am_centered"), atol=1e-6)
    np.testing.assert_allclose(values(case, "sim_am_softmax"), values(shifted, "sim_am_softmax"), atol=1e-6)
    assert np.abs(values(case, "sim_am") - values(shifted, "sim_am")).mean() > 0.1


def test_random_updates_are_seeded_and_as_defined() -> None:
    case = random_case(5, queries=300, width=64)
    z, c = case.zero_shot.attn_out, case.reference.attn_out
    for random in (sim_aou_random, sim_aou_random_text, sim_aou_random_code):
        assert torch.equal(random(z, c, 1), random(z, c, 1))
        assert not torch.equal(random(z, c, 1), random(z, c, 2))
    assert abs(sim_aou_random(z, c, 0).mean()) < 0.02
    assert sim_aou_random_text(z, c, 0).mean() > 0.3  # -z on both sides
    up = torch.ones_like(z)  # a change that is positive throughout is near any uniform [0, 1) one
    assert sim_aou_random_code(z, 0.001 * z + up, 0).mean() > 0.4
    # The published code scales every output to unit norm first: sizes do not matter to it.
    code = sim_aou_random_code(z, c, 0)
    torch.testing.assert_close(code, sim_aou_random_code(3 * z, 0.2 * c, 0))
    state = int(np.random.SeedSequence([0, 3, 0]).generate_state(1)[0])
    noise = torch.rand(z[:, 0].shape, generator=torch.Generator().manual_seed(state))
    expected = cos((c[0, 0] / c[0, 0].norm() - z[0, 0] / z[0, 0].norm()).numpy(), noise[0].numpy())
    assert code[0, 0].item() == pytest.approx(expected)


def drifting(seed: int, shared: float, own_part: torch.Tensor) -> torch.Tensor:
    """A change that is mostly the same for every query, and partly each query's own."""
    generator = torch.Generator().manual_seed(seed)
    queries, layers, width = own_part.shape
    return (
        shared * torch.ones(1, layers, width)
        + own_part
        + 0.1 * torch.randn(queries, layers, width, generator=generator)
    )


def test_nulls_that_only_drift_score_no_more_than_mismatched() -> None:
    """As gd/other-task and random-update do: the shared drift is there, the query's own change is not."""
    shape = {"queries": 200, "width": WIDTH}
    base = random_trace(0, **shape)
    own_icl = torch.randn(200, LAYERS, WIDTH, generator=torch.Generator().manual_seed(7))
    own_null = torch.randn(200, LAYERS, WIDTH, generator=torch.Generator().manual_seed(8))
    c = replace(base, attn_out=base.attn_out + drifting(1, 1.0, own_icl))
    real = replace(base, attn_out=base.attn_out + drifting(2, 1.0, own_icl))
    null = replace(base, attn_out=base.attn_out + drifting(3, 1.0, own_null))
    for trace, is_null in ((real, False), (null, True)):
        case = case_of(base, c, gradient(trace), LearnerSpec("gd", "other-task" if is_null else None))
        alike, mismatched = values(case, "sim_aou").mean(), values(case, "sim_aou_mismatched").mean()
        centered = values(case, "sim_aou_centered").mean()
        assert mismatched > 0.3  # the drift alone looks like a similarity
        if is_null:
            assert abs(alike - mismatched) < 0.03
            assert abs(centered) < 0.05
        else:
            assert alike > mismatched + 0.3
            assert centered > 0.9


def test_null_contexts_have_rows_of_their_own() -> None:
    case = random_case(6)
    null = random_trace(50)
    case = replace(case, others=(result(null, "null-context"), result(gradient(random_trace(51)), "lcgd")))
    z, c, g = arrays(case, "attn_out")
    n = null.attn_out.double().numpy()
    found = values(case, "sim_aou_null", "null-context")
    assert found[2, 1] == pytest.approx(cos(c[2, 1] - n[2, 1], g[2, 1] - z[2, 1]))
    found = values(case, "sim_aou_to_null", "null-context")
    assert found[2, 1] == pytest.approx(cos(n[2, 1] - z[2, 1], g[2, 1] - z[2, 1]))
    assert [v.reference for v in compute(case, ["alpha"])] == [LearnerSpec("lcgd")]


def test_a_context_that_is_none_is_no_null_context() -> None:
    """Dilution teaches nothing either, and has no context: nothing is compared with what it would add to one."""
    diluted = Result(LearnerSpec("dilution"), "null", Learned(random_trace(50)))
    assert not list(compute(replace(random_case(6), others=(diluted,)), ["sim_aou_null", "sim_aou_to_null"]))


def test_queries_without_a_value_are_no_part_of_a_mean() -> None:
    case = random_case(7)
    c, g = case.reference.attn_out.clone(), case.trace.attn_out.clone()
    c[4], g[4] = torch.nan, torch.nan
    broken = replace(
        case,
        own=result(gradient(replace(case.trace, attn_out=g))),
        against=result(replace(case.reference, attn_out=c), "in-context"),
    )
    kept = torch.arange(QUERIES) != 4
    for name in ("sim_aou_centered", "sim_aou_mismatched"):
        found = values(broken, name)
        assert np.isnan(found[4]).all()
        np.testing.assert_allclose(found[kept.numpy()], values(case.only(kept), name))


def test_a_layers_own_part_is_held_against_icls_change() -> None:
    case = random_case(8)
    case.trace.extras["direct_attn_out"] = random_trace(60).attn_out
    z, c, _ = arrays(case, "attn_out")
    direct = case.trace.extras["direct_attn_out"].double().numpy()
    found = values(case, "sim_aou_direct")
    assert found[3, 2] == pytest.approx(cos(c[3, 2] - z[3, 2], direct[3, 2] - z[3, 2]))


def test_a_query_that_fills_the_first_window_has_no_change_in_layer_0() -> None:
    """Positions are relative there, and no context comes into view: from the window's length on."""
    case = random_case(9, relative=True)
    case = replace(case, zero_shot=replace(case.zero_shot, first_window=5))
    found = np.isnan(values(case, "sim_aou"))
    assert found[:, 0].tolist() == [length >= 5 for length in case.zero_shot.lengths.tolist()]
    assert not found[:, 1:].any()


def test_a_case_of_some_queries_has_companions_of_the_same() -> None:
    null = random_trace(50)
    case = replace(random_case(6), others=(result(null, "null-context"),))
    kept = torch.arange(QUERIES) % 3 == 0
    some = case.only(kept)
    assert some.others[0].trace.query_ids == some.zero_shot.query_ids
    np.testing.assert_allclose(
        values(some, "sim_aou_null", "null-context"), values(case, "sim_aou_null", "null-context")[kept.numpy()]
    )


def test_beyond_dilution_and_dilution_leave_the_projections_bias_out() -> None:
    """The heads give z - b_o: that shrinks. Against loops, where the bias is large enough to turn z."""
    base = random_case(4)
    bias = 3 * torch.randn(LAYERS, WIDTH, generator=torch.Generator().manual_seed(1))
    case = replace(base, output_bias=bias)
    names = ["sim_aou_orthogonal", "sim_aou_dilution"]
    found = {values.metric: values.values for values in per_query(case, names)}
    plain = {values.metric: values.values for values in per_query(base, names)}
    for query in range(QUERIES):
        for layer in range(LAYERS):
            z, c, g = (t.attn_out[query, layer].double().numpy() for t in (case.zero_shot, case.reference, case.trace))
            heads = z - bias[layer].double().numpy()
            along = heads / np.linalg.norm(heads)
            left, right = ((d - (d @ along) * along) for d in (c - z, g - z))
            assert float(found["sim_aou_orthogonal"][query, layer]) == pytest.approx(cos(left, right), abs=1e-12)
            assert float(found["sim_aou_dilution"][query, layer]) == pytest.approx(cos(c - z, -heads), abs=1e-12)
    assert float((found["sim_aou_orthogonal"] - plain["sim_aou_orthogonal"]).abs().max()) > 0.01


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
