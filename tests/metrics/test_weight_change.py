"""Cosines of weight changes, against the changes written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench, identify
from dualscope.learners.learner import Result
from dualscope.metrics.measured import compute, measure_cell
from dualscope.metrics.weight_change import similarity
from dualscope.models.loading.adapter import matrix
from dualscope.models.reading.context_patch import ContextPatch
from tests.learners.setting import tiny_lesson, tiny_task, wrapped
from tests.metrics.cases import gradient, random_case, random_trace


def bench_of(family: str) -> Bench:
    model = wrapped(family)
    return Bench(model, tiny_lesson(model, task=tiny_task(n=160), shots=3, queries=4))


def test_by_layer_and_crossed() -> None:
    ours = {f"layers.{i}.key.weight": torch.randn(4, 3) for i in range(3)}
    theirs = {name: -value for name, value in ours.items()} | {"layers.0.value.bias": torch.ones(2)}
    same, crossed = similarity(ours, theirs, 4)
    torch.testing.assert_close(same[:3], -torch.ones(3, dtype=torch.float64))
    assert same[3].isnan()
    flat = [value.flatten().double() for value in ours.values()]
    expected = sum(-float(torch.cosine_similarity(flat[0], flat[k], dim=0)) for k in (1, 2)) / 2
    assert float(crossed[0]) == pytest.approx(expected)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_against_patches_written_out(family: str) -> None:
    bench = bench_of(family)
    gd = identify("gd-all", {}, None, 0.1)
    patch, static = LearnerSpec("context-patch"), LearnerSpec.of("static-patch", {"fit": 8})
    rows = measure_cell(bench, gd, [patch, static], metrics=["sim_dw", "sim_dw_mismatched"]).rows
    delta, found = bench.result(gd).learned.delta, bench.result(patch).learned.change
    assert isinstance(found, ContextPatch)
    assert delta is not None
    layer, values = 1, []
    for query in bench.lesson.query_ids:
        u, u_c = (store[query, None, layer].fed for store in (found.without, found.with_context))
        pieces, own = [], []
        for name, module in found.mlps[layer].inputs.items():
            full = torch.outer(matrix(module) @ (u_c - u), u) / u.square().sum()
            pieces.append(full.flatten())
            change = delta[name]
            own.append((change if isinstance(module, torch.nn.Linear) else change.T).flatten())
        values.append(float(torch.cosine_similarity(torch.cat(own), torch.cat(pieces), dim=0)))
    mine = [r["value"] for r in rows if r["metric"] == "sim_dw" and r["layer"] == layer]
    assert mine[0] == pytest.approx(sum(values) / len(values), rel=1e-9)
    assert any(r["metric"] == "sim_dw_mismatched" for r in rows)
    # the same rule with the static patch itself gives 1
    itself = measure_cell(bench, static, [static], metrics=["sim_dw"]).rows
    assert all(r["value"] == pytest.approx(1) for r in itself)


def test_keys_and_values() -> None:
    bench = bench_of("llama")
    fitted = LearnerSpec.of("kv-distilled", {"fit": 9, "lr": 0.001, "steps": 10})
    rows = measure_cell(bench, identify("gd", {}, None, 0.1), [fitted], metrics=["sim_dw"]).rows
    assert {r["layer"] for r in rows} == {None, 0, 1, 2}
    assert measure_cell(bench, identify("task-vector", {"layer": 1}), [fitted], metrics=["sim_dw"]).rows == []


def test_only_a_ceiling_under_no_control_is_compared() -> None:
    """Plain GD on another draw is a ceiling too, of another kind: it does not do what the context does."""
    other = gradient(random_trace(5))
    fitted = Result(LearnerSpec("kv-distilled"), "ceiling", other)
    redrawn = Result(LearnerSpec("gd", "redraw"), "ceiling", other)
    case = replace(random_case(0), others=(redrawn, fitted))
    assert [values.reference for values in compute(case, ["sim_dw"])] == [fitted.learning]
