"""The metrics on traces of real (tiny) models, and on a model that is gradient descent by construction."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.core.spec import IN_CONTEXT
from dualscope.learners import Bench, Learned, Result, identify
from dualscope.learners.learner import Reread
from dualscope.metrics import METRICS, measure, simple_metric
from dualscope.metrics.case import Case
from dualscope.metrics.single_heads import read_heads
from dualscope.models import Model
from dualscope.models.reading.trace import Trace
from dualscope.theory.linear_attention_step import gd_layer, gd_steps, tokens_of
from tests.learners.setting import tiny_bench
from tests.metrics.cases import (
    HEADS,
    LAYERS,
    QUERIES,
    WIDTH,
    case_of,
    gradient,
    per_query,
    predicted_case,
    random_case,
    random_trace,
    result,
)
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
    modules = ("responses_of_draws", "replay", "icl_update", "splice")
    elsewhere = {name for name in METRICS if METRICS[name].function.__module__.endswith(modules)}
    every = [name for name in METRICS if METRICS[name].wants <= EVERYTHING and name not in elsewhere]
    in_context = bench_case(bench, "in-context")
    in_context = replace(in_context, read=read_heads(bench, in_context, every))
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


COLUMNS = ["metric", "reference", "layer", "head", "step", "value", "low", "high", "n"]


def test_rows_have_the_columns_and_every_metric_is_described() -> None:
    for row in measure(random_case()).rows:
        assert list(row) == COLUMNS
    for name in METRICS:
        assert METRICS[name].about
        assert METRICS[name].formula


def test_aggregation_is_heads_then_queries_then_layers() -> None:
    case = random_case(1, relative=True)
    rows = measure(case, ["sim_am_delta"], per_head=True).rows
    (found,) = per_query(case, ["sim_am_delta"])
    values = found.values.numpy()  # layer 0 is undefined
    by_layer = np.nanmean(values[:, 1:], axis=2).mean(0)
    layers = {row["layer"]: row for row in rows if row["head"] is None}
    assert math.isnan(layers[0]["value"])
    assert layers[0]["n"] == 0
    np.testing.assert_allclose([layers[1]["value"], layers[2]["value"]], by_layer, atol=1e-12)
    assert layers[None]["value"] == pytest.approx(by_layer.mean())
    assert layers[None]["n"] == QUERIES
    heads = {(row["layer"], row["head"]): row["value"] for row in rows if row["head"] is not None}
    assert len(heads) == LAYERS * HEADS
    assert heads[2, 1] == pytest.approx(values[:, 2, 1].mean())


def test_undefined_queries_are_left_out_and_counted() -> None:
    case = random_case(2)
    out = case.trace.attn_out.clone()
    out[:4, 1] = case.zero_shot.attn_out[:4, 1]  # no change at all
    out[4, 1, 0] = torch.inf
    case = replace(case, own=result(gradient(replace(case.trace, attn_out=out))))
    for name in ("sim_aou", "sim_aou_norm", "sim_aou_mismatched"):
        rows = {row["layer"]: row for row in measure(case, [name]).rows}
        (found,) = per_query(case, [name])
        assert rows[1]["n"] == QUERIES - 5 if name != "sim_aou_mismatched" else QUERIES
        assert rows[0]["n"] == rows[None]["n"] == QUERIES
        assert rows[1]["value"] == pytest.approx(float(np.nanmean(found.values[:, 1])))
        assert math.isfinite(rows[1]["low"])


def test_interval_agrees_with_a_plain_bootstrap() -> None:
    case = random_case(3, queries=40)
    rows = {row["layer"]: row for row in measure(case, ["sim_aou"], seed=5).rows}
    (found,) = per_query(case, ["sim_aou"])
    values = found.values.numpy()
    drawn = np.random.default_rng(5).integers(0, 40, (1000, 40))
    means = values[drawn].mean(1)
    np.testing.assert_allclose(rows[1]["low"], np.quantile(means[:, 1], 0.025), atol=1e-12)
    np.testing.assert_allclose(rows[None]["high"], np.quantile(means.mean(1), 0.975), atol=1e-12)


def test_share_interval_agrees_with_a_plain_bootstrap() -> None:
    case = random_case(4, queries=50)
    row = next(r for r in measure(case, ["jaccard"]).rows)
    z, c, g = (t.predictions.numpy() for t in (case.zero_shot, case.reference, case.trace))
    drawn = np.random.default_rng(0).integers(0, 50, (1000, 50))
    shares = [((c != z) & (g != z))[i].sum() / ((c != z) | (g != z))[i].sum() for i in drawn]
    assert row["low"] == pytest.approx(np.quantile(shares, 0.025))


def test_table_of_queries() -> None:
    case = random_case(5, others=(result(gradient(random_trace(9)), "lcgd"),))
    table = measure(case, per_query=True).queries
    assert table.num_rows == QUERIES
    assert table["query"].to_pylist() == list(case.trace.query_ids)
    assert table["prediction"].to_pylist() == case.trace.predictions.tolist()
    layers = np.array(table["sim_aou_layers"].to_pylist())
    assert layers.shape == (QUERIES, LAYERS)
    np.testing.assert_allclose(table["sim_aou"].to_numpy(), layers.mean(1))
    assert "alpha[lcgd]" in table.column_names
    assert "sim_aou_layers" not in measure(case).queries.column_names


def test_subset_of_queries_that_both_turn_right() -> None:
    case = predicted_case([0] * 6, [1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 1])
    c, g = (replace(t, attn_out=random_trace(i, queries=6).attn_out) for i, t in ((8, case.reference), (9, case.trace)))
    case = replace(case, own=result(gradient(g)), against=result(c, "in-context"))
    measured = measure(case, ["sim_aou", "sim_aou_centered", "accuracy"], subset="f2t")
    rows = {row["metric"]: row for row in measured.rows if row["layer"] is None}
    whole, part = (next(iter(per_query(x, ["sim_aou"]))).values for x in (case, case.only(case.turned_right())))
    torch.testing.assert_close(part, whole[[0, 4]])
    assert rows["sim_aou"]["n"] == rows["sim_aou_centered"]["n"] == 2
    assert rows["sim_aou"]["value"] == pytest.approx(whole[[0, 4]].mean().item())
    assert rows["sim_aou_centered"]["value"] == pytest.approx(
        next(iter(per_query(case.only(case.turned_right()), ["sim_aou_centered"]))).values.mean().item()
    )
    assert rows["accuracy"]["n"] == 6  # over the subset it would be 1, whatever was learned
    assert np.isfinite(measured.queries["sim_aou"].to_numpy()).tolist() == [True, False, False, False, True, False]


def test_an_empty_subset_is_nan_with_n_zero() -> None:
    case = predicted_case([0, 0], [0, 0], [0, 0], [0, 0])
    for row in measure(case, subset="f2t", per_head=True, per_query=True).rows:
        if row["metric"].startswith(("sim_", "change_norm")):
            assert row["n"] == 0
            assert math.isnan(row["value"])
            assert math.isnan(row["low"])


def noisy(trace: Trace, outputs: float, scores: float, seed: int, some: slice = slice(0, 4)) -> Trace:
    """The first queries read again, and a little different."""
    cut = replace(trace.map(lambda t: t[some]), query_ids=trace.query_ids[some])
    generator = torch.Generator().manual_seed(seed)
    tokens = int(cut.lengths.max())

    def jittered(values: torch.Tensor, noise: float) -> torch.Tensor:
        return values + noise * torch.randn(values.shape, generator=generator)

    return replace(
        cut, attn_out=jittered(cut.attn_out, outputs), attn_scores=jittered(cut.attn_scores, scores)[..., -tokens:]
    )


def noisy_case(outputs: float, scores: float) -> Case:
    case = random_case(6, relative=True)
    z, g = (noisy(trace, outputs, scores, seed) for seed, trace in enumerate((case.zero_shot, case.trace)))
    return replace(case, reread=Reread(z, g), output_bias=torch.full((LAYERS, WIDTH), 0.3))


def test_signal_to_noise() -> None:
    case = noisy_case(0.001, 0.001)
    assert case.reread is not None
    rows = {(r["metric"], r["layer"]): r for r in measure(case).rows}
    again = case.reread
    z, g = (t.attn_out.double() for t in (case.zero_shot, case.trace))
    change, second = (g - z)[:4], again.trace.attn_out.double() - again.zero_shot.attn_out.double()
    noise = change - second  # of the change: what both sides share is none

    def ratio(signal: torch.Tensor, rounding: torch.Tensor) -> list[float]:
        found: list[float] = (signal.norm(dim=-1).sum(0) / rounding.norm(dim=-1).sum(0)).tolist()
        return found

    mean_less = noise - noise.mean(0)
    centred = ratio((g - z - (g - z).mean(0))[:4], mean_less * (4 / 3) ** 0.5)
    along = z[:4] - 0.3
    along = along / along.norm(dim=-1, keepdim=True)
    rest, rest_noise = (v - (v * along).sum(-1, keepdim=True) * along for v in (change, noise))
    for layer in range(LAYERS):
        assert rows["snr", layer]["value"] == pytest.approx(ratio(change, noise)[layer])
        assert rows["snr", layer]["n"] == 4
        assert rows["snr_centered", layer]["value"] == pytest.approx(centred[layer])
        assert rows["snr_orthogonal", layer]["value"] == pytest.approx(ratio(rest, rest_noise)[layer])
    assert rows["snr", None]["value"] == pytest.approx(min(ratio(change, noise)))
    assert rows["snr_low_layers", None]["value"] == 0
    assert math.isnan(rows["snr_scores", 0]["value"])  # undefined by construction
    for layer in (1, 2):
        signal = apart = 0.0
        for query in range(4):  # which have 1, 2, 3 and 4 tokens of their own, the last ones
            own = slice(-1 - query, None)
            once, twice = (
                pair[1].attn_scores[query, layer, :, own].double() - pair[0].attn_scores[query, layer, :, own].double()
                for pair in ((case.zero_shot, case.trace), (again.zero_shot, again.trace))
            )
            signal, apart = signal + float(once.norm()), apart + float((once - twice).norm())
        assert rows["snr_scores", layer]["value"] == pytest.approx(signal / apart)


def test_layers_that_rounding_may_turn_are_counted_by_outputs_and_by_scores() -> None:
    def low(outputs: float, scores: float) -> float:
        rows = measure(noisy_case(outputs, scores), ["snr_low_layers"]).rows
        return float(rows[0]["value"])

    assert low(0.001, 0.001) == 0
    assert low(1.0, 0.001) == LAYERS
    assert low(0.001, 1.0) == LAYERS - 1  # layer 0 has no change of scores to be wrong about
    assert low(1.0, 1.0) == LAYERS


def test_what_rounds_alike_on_both_sides_is_no_noise() -> None:
    """An error that zero-shot and the learner share is not in their difference."""
    case = random_case(6)
    shift = torch.randn(4, LAYERS, WIDTH, generator=torch.Generator().manual_seed(5))
    z, g = (replace(noisy(t, 0.0, 0.0, 0), attn_out=t.attn_out[:4] + shift) for t in (case.zero_shot, case.trace))
    rows = measure(replace(case, reread=Reread(z, g)), ["snr"]).rows
    assert rows[0]["value"] > 1e5
    same = Reread(noisy(case.zero_shot, 0.0, 0.0, 0), noisy(case.trace, 0.0, 0.0, 0))
    assert measure(replace(case, reread=same), ["snr"]).rows[0]["value"] == math.inf


def test_log_and_masses() -> None:
    norms = torch.arange(6.0).reshape(2, 3)
    case = random_case(7)
    log = gradient(case.trace, grad_norm=norms, update_norm=torch.ones(3), clipped_steps=1)
    rows = measure(replace(case, own=result(log)), ["grad_norm", "update_norm", "clipped_steps"]).rows
    found = {(r["metric"], r["layer"], r["step"]): r["value"] for r in rows}
    assert found["grad_norm", None, None] == 2.5
    assert found["grad_norm", 1, None] == 2.5
    assert found["grad_norm", 2, 1] == 5.0
    assert found["update_norm", 2, None] == 1.0
    assert found["clipped_steps", None, None] == 1
    context = random_trace(3)
    context.extras["demo_mass"] = torch.full((QUERIES, LAYERS, HEADS), 0.25)
    in_context = case_of(case.zero_shot, context, context, "in-context")
    rows = measure(in_context, ["demo_mass", "bos_mass"], per_head=True).rows
    assert len(rows) == 1 + LAYERS + LAYERS * HEADS
    assert rows[0]["value"] == 0.25


def test_a_window_is_a_mask_and_a_diverged_score_is_not() -> None:
    case = random_case(8)

    def windowed(trace: Trace) -> Trace:
        scores = trace.attn_scores.clone()
        scores[:, 1, :, :-2] = torch.nan
        return replace(trace, attn_scores=scores)

    z, c, g = windowed(case.zero_shot), windowed(case.reference), windowed(case.trace)
    (found,) = per_query(case_of(z, c, gradient(g)), ["sim_am"])
    assert found.values.isfinite().all()
    g.attn_scores[3, 1, 0, -1] = torch.nan
    (found,) = per_query(case_of(z, c, gradient(g)), ["sim_am"])
    assert found.values.isnan().nonzero().tolist() == [[3, 1, 0]]


def test_traces_of_other_queries_are_refused() -> None:
    with pytest.raises(InputError, match="other queries"):
        case_of(random_trace(0), random_trace(1, queries=5), gradient(random_trace(2)))


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(InputError, match="did you mean sim_aou"):
        measure(random_case(), ["sim_aout"])


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (torch.ones(QUERIES, dtype=torch.complex64), "complex numbers"),
        (torch.ones(0), r"shape \(0,\) for"),
        (torch.ones(QUERIES, 0), r"shape \(\d+, 0\)"),
        (torch.ones(QUERIES - 1), "shape"),
        (torch.ones(QUERIES, 1, 1, 1), "shape"),
        (torch.tensor(1.0), "shape"),
        (1.0, "a value of type float"),
        ([1.0] * QUERIES, "a value of type list"),
        (None, "a value of type NoneType"),
        ("x", "a value of type str"),
    ],
)
@pytest.mark.parametrize("subset", ["all", "f2t"])
def test_what_is_no_table_of_real_numbers_is_refused(returned: Any, said: str, subset: Any, forget: None) -> None:
    simple_metric("strange", "?", "about")(lambda case: returned)
    with pytest.raises(InputError, match=f"metric 'strange' returns .*{said}"):
        measure(random_case(), ["strange"], subset=subset)
