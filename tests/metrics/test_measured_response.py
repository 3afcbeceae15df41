"""A learner's response from the lesson to the rows, against one plain implementation; and learners that are known."""

import math

import numpy as np
import pytest
import torch

from dualscope.core.response_products import parts_of, plant_name
from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.learners import Bench
from dualscope.learners.response_bench import ResponseBench
from dualscope.metrics import measured_response
from dualscope.metrics.measured_response import MeasuredResponse, ResponseMeter
from dualscope.models.reading.trace import Trace
from tests.learners.setting import tiny_bench, tiny_task

GD = LearnerSpec("gd", lr=0.3)


def bench(
    family: str = "gpt2", kind: str = "relabel", draws: int = 8, labels: tuple[str, ...] = ("Negative", "Very Positive")
) -> ResponseBench:
    own = tiny_bench(family, shots=8, queries=6, balanced=True, task=tiny_task(labels=labels, n=200))
    return ResponseBench(own, kind, draws)


def value(
    found: MeasuredResponse, metric: str, reference: str | None = "in-context", layer: int | None = None
) -> float:
    rows = [row for row in found.rows if (row["metric"], row["reference"], row["layer"]) == (metric, reference, layer)]
    assert len(rows) == 1, (metric, reference, layer)
    return rows[0]["value"]


def plain_answers(trace: Trace) -> list[list[float]]:
    found = []
    for line in trace.label_logprobs.tolist():
        p = [math.exp(one) for one in line]
        logs = [math.log(0.999 * one / sum(p) + 0.001 / len(p)) for one in p]
        found.append([one - sum(logs) / len(logs) for one in logs])
    return found


def plain_response(values: np.ndarray, levels: list[str]) -> np.ndarray:
    """[draws, queries, ...]: less the level's mean, then less each draw's mean over the queries, by plain loops."""
    out = np.array(values, float)
    for k, level in enumerate(levels):
        same = [values[j] for j in range(len(levels)) if levels[j] == level]
        out[k] = values[k] - sum(same) / len(same)
    for k in range(len(levels)):
        out[k] = out[k] - sum(out[k]) / len(out[k])
    return out


def less_level_mean(values: np.ndarray, levels: list[str]) -> np.ndarray:
    same = [[j for j in range(len(levels)) if levels[j] == level] for level in levels]
    return np.stack([values[k] - values[rows].mean(0) for k, rows in enumerate(same)])


def plain_r(left: np.ndarray, right: np.ndarray) -> float:
    top = sum(float(a) * float(b) for a, b in zip(left.ravel(), right.ravel(), strict=True))
    return top / math.sqrt(sum(float(a) ** 2 for a in left.ravel()) * sum(float(b) ** 2 for b in right.ravel()))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_against_one_learner_at_a_time(family: str) -> None:
    here = bench(family)
    model, levels = here.bench.model, [str(draw.level) for draw in here.draws]
    found = ResponseMeter(here).measure(GD, [(plant_name("gd"), GD)])
    traces = {
        learning: [Bench(model, draw.lesson).result(learning).trace for draw in here.draws]
        for learning in (IN_CONTEXT, GD)
    }
    answers = {who: np.array([plain_answers(one) for one in own]) for who, own in traces.items()}
    r, s = (plain_response(answers[who], levels) for who in (IN_CONTEXT, GD))
    assert value(found, "response_answers") == pytest.approx(plain_r(r, s), abs=1e-9)
    # the prior: the mean over queries, which the function has lost
    bias = []
    for who in (IN_CONTEXT, GD):
        prior = answers[who].mean(1, keepdims=True)
        bias.append(
            np.stack([prior[k] - prior[[j for j in range(8) if levels[j] == levels[k]]].mean(0) for k in range(8)])
        )
    assert value(found, "response_bias") == pytest.approx(plain_r(*bias), abs=1e-9)
    zero = np.array(plain_answers(here.bench.zero_shot))
    first = answers[GD][:4]
    share = 4 / 3 * ((first - first.mean(0)) ** 2).sum() / ((first - zero) ** 2).sum()
    assert value(found, "learned_share", None) == pytest.approx(share, abs=1e-9)
    outputs = {who: np.array([one.attn_out.numpy() for one in own]) for who, own in traces.items()}
    z, weights, numbers = here.bench.zero_shot.attn_out.numpy(), [], []
    for layer in range(model.n_layers):
        r, s = (plain_response(outputs[who][:, :, layer], levels) for who in (IN_CONTEXT, GD))
        numbers.append(plain_r(r, s))
        assert value(found, "response_aou", layer=layer) == pytest.approx(numbers[-1], abs=1e-9)
        own = outputs[IN_CONTEXT][:4, :, layer]
        weights.append(4 / 3 * ((own - own.mean(0)) ** 2).sum() / ((own - z[:, layer]) ** 2).sum())
    mean = sum(w * n for w, n in zip(weights, numbers, strict=True)) / sum(weights)
    assert value(found, "response_aou") == pytest.approx(mean, abs=1e-9)
    for layer in range(1, model.n_layers):
        both = []
        for who in (IN_CONTEXT, GD):
            maps = np.array([one.attn_scores[:, layer].flatten(1).nan_to_num(0.0).numpy() for one in traces[who]])
            both.append(
                np.stack([maps[k] - maps[[j for j in range(8) if levels[j] == levels[k]]].mean(0) for k in range(8)])
            )
        assert value(found, "response_am", layer=layer) == pytest.approx(plain_r(*both), abs=1e-8)
    assert found.responses is not None
    parts, _ = parts_of(found.responses)
    assert {part.reference for part in parts} == {"own", "in-context", "plant:gd"}


def test_what_is_copied_is_taken_out_of_both() -> None:
    """<R,S> - <R,P><S,P> / mean <P_i,P_j>, by plain sums over the sets of other inputs."""
    here = bench()
    meter = ResponseMeter(here)
    found = meter.measure(GD)
    assert found.responses is not None
    parts, levels = parts_of(found.responses)
    (part,) = [one for one in parts if (one.reference, one.part) == ("in-context", "answers")]
    assert part.copying is not None
    assert not isinstance(meter.copying, str)
    r, s, *sets = (
        plain_response(one.answers.numpy(), [str(level) for level in levels])
        for one in (meter.reference, meter.of(GD), *meter.copying)
    )
    assert len(sets) == 4
    pairs = [(one, other) for i, one in enumerate(sets) for other in sets[:i]]
    size = sum(float((one * other).sum()) for one, other in pairs) / len(pairs)
    agreement = sum(plain_r(one, other) for one, other in pairs) / len(pairs)
    mean = sum(sets) / len(sets)
    assert part.copying.size == pytest.approx(size, abs=1e-9)
    assert part.copying.agreement == pytest.approx(agreement, abs=1e-9)
    assert part.copying.with_reference == pytest.approx(float((r * mean).sum()), abs=1e-9)
    assert part.copying.with_own.total == pytest.approx(float((s * mean).sum()), abs=1e-9)
    assert value(found, "copying") == pytest.approx(agreement, abs=1e-9)
    assert value(found, "response_answers_given") == pytest.approx(part.given_copying)


def test_a_layer_whose_response_is_rounding_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    here = bench()
    whole = ResponseMeter(here).measure(GD)
    reference = ResponseMeter(here).measure(IN_CONTEXT)
    layers = range(here.bench.model.n_layers)
    snr = [min(value(one, "response_snr", None, layer) for one in (whole, reference)) for layer in layers]
    weakest = int(np.argmin(snr))
    monkeypatch.setattr(measured_response, "SNR_FLOOR", sorted(snr)[1])
    found = ResponseMeter(here).measure(GD)
    assert found.responses is not None
    kept = {one.layer for one in parts_of(found.responses)[0] if (one.reference, one.part) == ("in-context", "outputs")}
    assert kept == set(layers) - {weakest}


def test_answers_that_are_the_same_for_every_query_are_no_function() -> None:
    # After the last layer a task vector takes the place of all that is known of the query: what differs from query to
    # query is rounding, the same in the learner and in its plant, and would correlate perfectly.
    here = bench(labels=("Negative", "Positive"))  # of one token: a second one would see the query again
    last = LearnerSpec.of("task-vector", {"layer": here.bench.model.n_layers - 1})
    found = ResponseMeter(here).measure(last, plants=((plant_name(last.label), last),))
    assert math.isnan(value(found, "response_answers", plant_name(last.label)))
    assert math.isnan(value(found, "response_answers"))
    assert math.isnan(value(found, "response_answers_given"))
    assert value(found, "learned_share", None) > 0


def test_what_is_in_context_learning_responds_as_it() -> None:
    found = ResponseMeter(bench()).measure(LearnerSpec("context-patch"))
    assert value(found, "response_answers") == pytest.approx(1, abs=1e-6)


def test_what_ignores_labels_learns_nothing() -> None:
    # Labels of one length: blanks of several lengths would move the inputs.
    found = ResponseMeter(bench(labels=("Negative", "Yes"))).measure(LearnerSpec("null-context"))
    assert value(found, "learned_share", None) < 0.01


def test_answers_only_learners_have_the_answers_ones() -> None:
    found = ResponseMeter(bench()).measure(LearnerSpec("probe"))
    metrics = {row["metric"] for row in found.rows}
    assert "response_answers" in metrics
    assert "response_bias" in metrics
    assert not metrics & {"response_aou", "response_am", "response_geometry", "learned_share_aou"}


def test_influence_and_order() -> None:
    here = bench(kind="flip-one")
    meter = ResponseMeter(here)
    icl, gd = meter.measure(IN_CONTEXT), meter.measure(GD)
    assert icl.queries is not None
    assert gd.queries is not None
    both = [np.array(one.queries["influence"].to_pylist()) for one in (icl, gd) if one.queries is not None]
    assert both[0].shape == (6, 8)
    left, right = (one - one.mean(0) for one in both)
    assert value(gd, "response_influence") == pytest.approx(plain_r(left, right), abs=1e-9)
    orders = ResponseMeter(bench(kind="reorder", draws=5))
    found = orders.measure(IN_CONTEXT)
    traces = [Bench(orders.bench.bench.model, draw.lesson).in_context for draw in orders.bench.draws]
    right_p = torch.stack([t.label_logprobs.softmax(-1).gather(1, t.labels[:, None])[:, 0] for t in traces])
    assert value(found, "order_sensitivity", None) == pytest.approx(float(right_p.std(0).mean()), abs=1e-12)


def test_without_spare_examples_copying_is_said_not_to_be_measured() -> None:
    here = bench()
    vars(here.bench)["spare"] = ()
    found = ResponseMeter(here).measure(IN_CONTEXT)
    assert found.notes
    assert "copying was not measured" in found.notes[0]
