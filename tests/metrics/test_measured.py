"""The metrics on traces of real (tiny) models, and on a model that is gradient descent by construction."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dualscope.core.spec import IN_CONTEXT
from dualscope.learners import Bench, Learned, Result, identify
from dualscope.metrics import METRICS, Case, measure
from dualscope.metrics.single_heads import measure_heads
from dualscope.models import Model
from dualscope.theory.linear_attention_step import gd_layer, gd_steps, tokens_of
from tests.learners.setting import tiny_bench
from tests.metrics.cases import case_of, gradient, random_trace
from tests.models.lessons import random_lesson
from tests.models.tiny import tiny_model

EVERYTHING = frozenset({"exits", "mass", "kendall", "direct", "next_tokens"})


def bench_case(bench: Bench, learner: str, lr: float | None = 0.1, others: tuple[Result, ...] = ()) -> Case:
    return Case(
        bench.zero_shot,
        bench.result(identify(learner, lr=lr)),
        bench.result(IN_CONTEXT),
        relative_positions=bench.model.relative_positions,
        lesson=bench.lesson,
        others=others,
    )


@pytest.mark.parametrize("family", ["gpt2", "llama", "xglm"])
def test_every_metric_has_its_material(family: str) -> None:
    bench = tiny_bench(family, want=EVERYTHING)
    beside = [identify("lcgd", lr=0.1), identify("null-context")]
    beside += [identify("kv-distilled", {"fit": 6, "lr": 0.001, "steps": 10})]
    beside += [identify("gd", {"draw": draw}, "reorder", 0.1) for draw in range(1, 6)]
    gd = bench_case(bench, "gd", others=tuple(map(bench.result, beside)))
    gd = replace(gd, reread=bench.reread(gd.learned))
    # What is made from an intervention's draws, and what is read anew, has tests of its own.
    modules = ("definitions", "replay", "icl_update", "splice")
    elsewhere = {name for name in METRICS if METRICS[name].source.__module__.endswith(modules)}
    every = [name for name in METRICS if METRICS[name].wants <= EVERYTHING and name not in elsewhere]
    in_context = replace(bench_case(bench, "in-context"), heads=measure_heads(bench, every))
    rows = measure(gd, every).rows + measure(in_context, every).rows
    rows += measure(bench_case(bench, "null-context", None), ["null_learned"]).rows
    vector = replace(gd, own=bench.result(identify("task-vector", {"layer": 1})), others=())
    rows += measure(vector, ["sim_aou", "sim_aou_above"]).rows
    assert not any(row["metric"] == "sim_aou" for row in measure(vector, ["sim_aou"]).rows)
    missing = set(every) - {row["metric"] for row in rows} - {"clipped_steps"}
    assert not missing
    for row in rows:
        if row["metric"] in ("sim_am_delta", "alpha", "snr_scores") and row["layer"] == 0:
            assert np.isnan(row["value"]) == bench.model.relative_positions
        elif row["metric"] in ("sim_aou", "sim_am", "sim_aou_direct", "kendall", "grad_norm", "demo_mass"):
            assert np.isfinite(row["value"]), row


def test_layer_zero_has_no_drift_from_below() -> None:
    """In the first layer the direct part is the whole change."""
    measured = measure(bench_case(tiny_bench(want=EVERYTHING), "gd"), ["sim_aou", "sim_aou_direct"], per_query=True)
    whole, direct = (np.array(measured.queries[f"{name}_layers"].to_pylist()) for name in ("sim_aou", "sim_aou_direct"))
    np.testing.assert_allclose(whole[:, 0], direct[:, 0], atol=1e-6)
    assert np.abs(whole[:, 1:] - direct[:, 1:]).max() > 1e-4


def test_rows_can_be_had_from_saved_traces(tmp_path: object) -> None:
    case = bench_case(tiny_bench(dtype=torch.float32), "gd")
    names = ["accuracy", "sim_aou", "sim_am", "sim_am_delta", "rec2ftp", "jaccard"]
    loaded = []
    for name, trace in (("z", case.zero_shot), ("c", case.reference), ("g", case.trace)):
        trace.save(f"{tmp_path}/{name}.safetensors")
        loaded.append(type(trace).load(f"{tmp_path}/{name}.safetensors"))
    again = case_of(loaded[0], loaded[1], loaded[2], relative_positions=case.relative_positions)
    assert repr(measure(again, names).rows) == repr(measure(case, names).rows)


def test_a_model_that_is_gradient_descent_is_recognised() -> None:
    """von Oswald's construction: each layer's attention adds to the query what one GD step does to the prediction."""
    generator = torch.Generator().manual_seed(0)
    n, n_x, n_y, queries, depth, eta = 10, 6, 4, 30, 3, 0.5
    x, y = torch.randn(n, n_x, generator=generator), torch.randn(n, n_y, generator=generator)
    query, start = torch.randn(queries, n_x, generator=generator), torch.randn(n_y, n_x, generator=generator)
    layer = gd_layer(start, eta, n)
    tokens = tokens_of(x.expand(queries, n, n_x), y.expand(queries, n, n_y), query, start)
    icl, gd = [], []
    for step in range(depth):
        after = layer(tokens)
        icl.append((after - tokens)[:, -1])  # what attention adds at the read position
        tokens = after
        weight, before = gd_steps(x, y, start, eta, step + 1), gd_steps(x, y, start, eta, step)
        gd.append(torch.cat([torch.zeros(queries, n_x), -query @ (weight - before).T], -1))
    base = random_trace(0, queries=queries, layers=depth, width=n_x + n_y)
    z = replace(base, attn_out=torch.zeros(queries, depth, n_x + n_y))  # no context: nothing to attend to
    c, g = (replace(base, attn_out=torch.stack(out, 1)) for out in (icl, gd))
    rows = {row["metric"]: row for row in measure(case_of(z, c, gradient(g))).rows if row["layer"] is None}
    for name in ("sim_aou", "sim_aou_centered"):
        assert rows[name]["value"] >= 0.99
        assert rows[name]["n"] == queries
    assert abs(rows["sim_aou_mismatched"]["value"]) < 0.3
    assert abs(rows["sim_aou_random"]["value"]) < 0.2


def test_where_a_query_fills_the_first_layers_window_no_context_reaches_it() -> None:
    model = Model(*tiny_model("mistral", sliding_window=6))
    lesson = random_lesson(queries=(3, 5, 6, 9))
    z, c = model.read(lesson), model.read(lesson, model.prefix(lesson.context))
    g = Learned(replace(z, attn_out=z.attn_out + torch.randn(z.attn_out.shape)))
    case = case_of(z, c, g, relative_positions=True)
    changed = (c.attn_out - z.attn_out)[:, 0].norm(dim=-1) > 1e-3
    assert changed.tolist() == [True, True, False, False]
    table = measure(case, metrics=["sim_aou"], per_query=True).queries.to_pydict()
    first = torch.tensor(table["sim_aou_layers"])[:, 0]
    assert (first.isfinite() == changed).all()
    assert torch.tensor(table["sim_aou_layers"])[:, 1:].isfinite().all()
