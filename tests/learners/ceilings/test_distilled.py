"""Changes of keys and values that are fitted on in-context learning's own traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dualscope.learners import Bench
from dualscope.learners.ceilings import distilled
from dualscope.learners.ceilings.distilled import DistilledOptions, KvAligned, KvDistilled, run
from dualscope.models.model import Model
from dualscope.models.reading.trace import Trace
from dualscope.tasks import Episode, Task, make_lesson
from dualscope.tasks.lesson import Lesson
from tests.learners.setting import tiny_lesson, tiny_task, wrapped

ONE_TOKEN = ("Positive", "Negative")
SEVERAL = ("Negative", "Very Positive")


def bench_of(family: str, labels: tuple[str, ...] = SEVERAL) -> Bench:
    model = wrapped(family)
    return Bench(model, tiny_lesson(model, task=tiny_task(n=140, labels=labels), shots=3, queries=4))


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mistral", "bloom"])
@pytest.mark.parametrize("labels", [ONE_TOKEN, SEVERAL])
def test_what_is_fitted_sees_what_reading_sees(family: str, labels: tuple[str, ...]) -> None:
    bench = bench_of(family, labels)
    asked = bench.materials(6, "it")
    trace = bench.model.read(asked)
    with torch.no_grad(), bench.model.running():
        scores, outputs = run(bench.model, asked, range(6))
    torch.testing.assert_close(scores, trace.label_logprobs)
    torch.testing.assert_close(outputs, trace.attn_out)


@pytest.mark.parametrize("name", ["kv-distilled", "kv-aligned"])
def test_a_fit_lowers_its_loss(name: str) -> None:
    bench = bench_of("llama")
    learned = bench.learned(name, lr=0.003, fit=12, steps=60)
    asked = bench.materials(12, "it")
    icl, zero = bench.model.read(asked, bench.prefix), bench.model.read(asked)
    assert learned.change is not None
    with learned.change.applied(bench.model):
        own = bench.model.read(asked)
    if name == "kv-aligned":
        before, after = ((t.attn_out - icl.attn_out).norm() for t in (zero, own))
    else:
        target = icl.label_logprobs.softmax(-1)
        before, after = ((target * (target.log() - t.label_logprobs.log_softmax(-1))).sum() for t in (zero, own))
    assert float(after) < float(before)
    assert set(learned.delta or ()) == {part.name for part in bench.model.parts()}


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
@pytest.mark.parametrize("loss", [KvDistilled.loss, KvAligned.loss])
def test_rows_that_nobody_looks_at_have_no_part_in_the_gradient(
    family: str, loss: distilled.Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(family, ONE_TOKEN)
    model, asked = bench.model, bench.materials(6, "it")
    assert model.mixes_lengths
    icl, zero = model.read(asked, bench.prefix), model.read(asked)

    def gradient() -> list[torch.Tensor]:
        with model.running(), torch.enable_grad():
            weights = [model.hf.get_parameter(part.parameter) for part in model.parts()]
            return list(torch.autograd.grad(loss(model, asked, icl, zero, range(6)), weights))

    narrow = gradient()
    monkeypatch.setattr(Model, "mixes_lengths", False)
    torch.testing.assert_close(narrow, gradient(), rtol=1e-9, atol=1e-13)
    assert max(float(value.norm()) for value in narrow) > 1e-6


@pytest.mark.parametrize("fit", [6, 13])
def test_a_ceiling_is_not_trained_on_the_third_that_stops_it(fit: int) -> None:
    bench, seen = bench_of("gpt2", ONE_TOKEN), {True: set[int](), False: set[int]()}

    def loss(model: Model, asked: Lesson, icl: Trace, zero: Trace, members: Sequence[int]) -> torch.Tensor:
        seen[torch.is_grad_enabled()] |= set(members)
        return distilled.label_divergence(model, asked, icl, zero, members)

    options = DistilledOptions(lr=0.003, fit=fit, steps=30, batch=2)
    distilled.fitted(bench, loss, options, lr=0.003)
    trained, held = seen[True], seen[False]
    assert held == set(range(fit // 3))
    assert trained == set(range(fit)) - held


def on_the_embedded_model(dtype: str = "float32") -> Bench:
    model = Model.load("embedded", device="cpu", dtype=dtype)
    episode = Episode.draw(Task.load("embedded-sst2"), shots=16, queries=20)
    return Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))


def unexplained(bench: Bench, name: str, **options: Any) -> float:
    """Of the queries, which the fit never sees: mean KL(ICL || fitted), as a share of KL(ICL || zero-shot)."""
    target = bench.in_context.label_logprobs.log_softmax(-1)
    fitted = bench.learned(name, **options).trace
    own, before = (
        (target.exp() * (target - trace.label_logprobs.log_softmax(-1))).sum(-1).mean()
        for trace in (fitted, bench.zero_shot)
    )
    return float(own / before)


def counting(monkeypatch: pytest.MonkeyPatch, learner: type[KvDistilled | KvAligned]) -> Counter[bool]:
    """How often a learner's loss is computed: with a gradient, which is a step, and without."""
    seen: Counter[bool] = Counter()
    plain = learner.loss

    def counted(*arguments: Any) -> torch.Tensor:
        seen[torch.is_grad_enabled()] += 1
        return plain(*arguments)

    monkeypatch.setattr(learner, "loss", staticmethod(counted))
    return seen


def test_a_fit_ends_when_there_is_nothing_left_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"lr": 0.003, "fit": 24, "steps": 40, "batch": 8}
    seen, bench = counting(monkeypatch, KvDistilled), on_the_embedded_model()
    shorter = unexplained(bench, "kv-distilled", **options)
    assert 0 < seen[True] < 40
    assert seen[True] % distilled.CHECK == 0
    seen.clear()
    monkeypatch.setattr(distilled, "ENOUGH", 0.0)
    longer = unexplained(on_the_embedded_model(), "kv-distilled", **options)
    assert seen[True] == 40
    assert abs(shorter - longer) < 0.005


def test_a_fit_that_still_gains_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counting(monkeypatch, KvAligned)
    on_the_embedded_model().learned("kv-aligned", lr=0.001, fit=24, steps=30, batch=8)
    assert seen == {True: 30, False: 4}


@pytest.mark.parametrize("name", ["kv-distilled", "kv-aligned"])
def test_float64_is_fitted_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = on_the_embedded_model("float64")
    before = {key: value.clone() for key, value in bench.model.hf.state_dict().items()}
    options: dict[str, Any] = {"lr": 0.001, "fit": 24, "steps": 20, "batch": 8}
    fast, left = bench.learned(name, **options).delta, unexplained(bench, name, **options)
    assert fast is not None
    assert {change.dtype for change in fast.values()} == {torch.float64}
    assert all(torch.equal(value, before[key]) for key, value in bench.model.hf.state_dict().items())
    monkeypatch.setattr(distilled, "no_wider_than_needed", lambda model: model)
    bench = on_the_embedded_model("float64")
    slow = bench.learned(name, **options).delta
    assert slow is not None
    assert left == pytest.approx(unexplained(bench, name, **options), abs=1e-4)
    for key in slow:
        if key.endswith("weight"):  # what a key's bias changes is nothing, so it has no gradient but what is rounded
            assert float((fast[key] - slow[key]).norm() / slow[key].norm()) < 1e-2
