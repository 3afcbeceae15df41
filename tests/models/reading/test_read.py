"""Every fast path against the slow oracle, for all architectures."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from dualscope.core.spec import IN_CONTEXT, LearnerSpec
from dualscope.core.statistics import SNR_THRESHOLD
from dualscope.findings.answer import SMALL
from dualscope.learners import Bench, Learned, Result
from dualscope.metrics import Case, measure
from dualscope.metrics.noise import sizes
from dualscope.models import Model
from dualscope.models.reading.read import other_order
from dualscope.models.reading.trace import Trace
from dualscope.tasks import Episode, Task, make_lesson
from tests.learners.setting import tiny_bench
from tests.models.lessons import random_lesson
from tests.models.oracle import oracle, watch
from tests.models.tiny import FAMILIES, tiny_model

EVERYTHING = frozenset(
    {"exits", "mass", "attention", "layer_inputs", "query_vectors", "context_scores", "context_products"}
)
SEVERAL = ((16,), (19, 16), (19, 17, 20))  # labels of one, two and three tokens
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def relative(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of any layer relative to the largest entry of that layer, NaN where NaN is due."""
    assert found.shape == wanted.shape
    assert torch.equal(found.isnan(), wanted.isnan())
    layered = (wanted if wanted.ndim > 2 else wanted[:, None]).nan_to_num().double()
    other = (found if found.ndim > 2 else found[:, None]).nan_to_num().double()
    gap = (layered - other).abs().transpose(0, 1).flatten(1).amax(-1)
    return float((gap / layered.abs().transpose(0, 1).flatten(1).amax(-1).clamp_min(1e-3)).max())


def assert_same(trace: object, wanted: dict[str, Tensor], tolerance: float) -> None:
    for name in ("attn_out", "residual", "attn_scores", "label_logprobs"):
        assert relative(getattr(trace, name), wanted[name]) <= tolerance, name
    found = trace.label_logprobs_at_layer  # type: ignore[attr-defined]
    if found is not None:  # normalised over the classes
        exits = wanted["label_logprobs_at_layer"].log_softmax(-1)
        assert relative(found, exits) <= tolerance
    for name, value in trace.extras.items():  # type: ignore[attr-defined]
        assert relative(value, wanted[name]) <= tolerance, name


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float64, id="float64"), pytest.param(torch.float32, id="float32", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("family", FAMILIES)
class TestAgainstOracle:
    def test_in_context(self, family: str, dtype: torch.dtype) -> None:
        hf, tokenizer = tiny_model(family, dtype)
        model, lesson = Model(hf, tokenizer), random_lesson()
        trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING, batch_size=2)
        assert_same(trace, oracle(hf, lesson, lesson.context), TOLERANCE[dtype])

    def test_zero_shot_at_an_offset(self, family: str, dtype: torch.dtype) -> None:
        hf, tokenizer = tiny_model(family, dtype)
        model, lesson = Model(hf, tokenizer), random_lesson()
        want = EVERYTHING - {"context_scores", "context_products"}
        for offset in (0, 40):
            trace = model.read(lesson, want=want, position_offset=offset)
            assert_same(trace, oracle(hf, lesson, lesson.bos, offset), TOLERANCE[dtype])

    def test_labels_of_several_tokens_read_at_the_first(self, family: str, dtype: torch.dtype) -> None:
        hf, tokenizer = tiny_model(family, dtype)
        for read_at in ("prompt-end", "first-label"):
            model, lesson = Model(hf, tokenizer), random_lesson(answers=SEVERAL, read_at=read_at)
            trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING, batch_size=3)
            assert_same(trace, oracle(hf, lesson, lesson.context), TOLERANCE[dtype])


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_logits_are_the_plain_models(family: str) -> None:
    hf, tokenizer = tiny_model(family)
    model, lesson = Model(hf, tokenizer), random_lesson()
    sequence = torch.tensor([[*lesson.context, *lesson.queries[4]]])
    with torch.no_grad():
        eager = hf(input_ids=sequence, use_cache=False).logits
    captured = captured_logits(model, sequence)
    assert (captured - eager).abs().max() <= 5e-5
    own, _ = watch(hf, sequence[0].tolist())  # the oracle too is the model
    assert (own - eager[0]).abs().max() <= 5e-5


def captured_logits(model: Model, tokens: Tensor) -> Tensor:
    from dualscope.models.capture.hooks import capturing
    from dualscope.models.capture.session import Session

    session = Session(read=tokens.shape[1] - 1)
    with torch.no_grad(), model.running(), capturing(model, session):
        logits = model.forward(tokens)
    model.check(session)
    return logits


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_without_bos(family: str) -> None:
    hf, tokenizer = tiny_model(family, torch.float64, bos=False)
    model, lesson = Model(hf, tokenizer), random_lesson(bos=False)
    trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING)
    assert_same(trace, oracle(hf, lesson, lesson.context), 1e-10)
    trace = model.read(lesson, want=frozenset({"mass"}))
    assert_same(trace, oracle(hf, lesson, ()), 1e-10)
    assert not trace.extras["bos_mass"].any()


@pytest.mark.parametrize("family", ["gpt2", "mistral", "bloom"])
def test_several_tokens_before_everything(family: str) -> None:
    """A chat template may begin with a system message: it is no demonstration, and no query's own."""
    hf, tokenizer = tiny_model(family, torch.float64)
    model, lesson = Model(hf, tokenizer), random_lesson(head=(1, 40, 41, 42))
    trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING)
    assert_same(trace, oracle(hf, lesson, lesson.context), 1e-10)
    trace = model.read(lesson, want=EVERYTHING - {"context_scores"})
    assert_same(trace, oracle(hf, lesson, lesson.bos), 1e-10)


MIXABLE = ["gpt2", "opt", "gpt_neox", "llama", "qwen2", "qwen3", "olmo2", "xglm", "gptj"]  # no windows, no ALiBi


@pytest.mark.parametrize("family", MIXABLE)
def test_queries_of_mixed_lengths_in_one_batch(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does: shorter queries are filled up after the position that is read."""
    hf, tokenizer = tiny_model(family, torch.float64)
    model, lesson = Model(hf, tokenizer), random_lesson()
    monkeypatch.setitem(model.__dict__, "mixes_lengths", True)
    trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING, batch_size=4)
    assert model.counters["batches"] == 2
    assert_same(trace, oracle(hf, lesson, lesson.context), 1e-10)
    zero_shot = model.read(lesson, want=EVERYTHING - {"context_scores", "context_products"})
    assert_same(zero_shot, oracle(hf, lesson, lesson.bos), 1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_numbers_in_another_order(family: str) -> None:
    """In float64 the difference is rounding, and it is there: no family is left out."""
    model = Model(*tiny_model(family, torch.float64), name=family)
    lesson = random_lesson()
    # Plain attention both times: what differs is the order in which linear layers add up.
    once = model.read(lesson, plain=True), model.read(lesson, model.prefix(lesson.context), plain=True)
    with other_order(model):
        twice = model.read(lesson), model.read(lesson, model.prefix(lesson.context))
    for first, second in zip(once, twice, strict=True):
        torch.testing.assert_close(first.attn_out, second.attn_out, rtol=1e-6, atol=1e-7)  # rotary is float32
        assert not torch.equal(first.attn_out[:, 0], second.attn_out[:, 0])
    assert torch.equal(once[0].attn_out, model.read(lesson, plain=True).attn_out)  # left as it was


def test_the_model_is_left_as_it_was_also_after_an_error() -> None:
    model = Model(*tiny_model("gpt2"))
    with pytest.raises(KeyError), other_order(model):
        raise KeyError
    assert not model.in_other_order
    assert not any("forward" in module.__dict__ for module in model.hf.modules())


def test_a_change_of_weights_acts_beside_them() -> None:
    """So that what is lost when W + dW is rounded shows: the second read does not round it."""
    bench = tiny_bench("gpt2", torch.float32, shots=2, queries=3)
    delta = bench.learned("gd", 0.1).delta
    assert delta is not None
    small = delta.scaled(1e-6)
    weight = bench.model.hf.transformer.h[0].attn.c_attn.weight
    before = weight.clone()
    with small.applied(bench.model):
        assert not torch.equal(weight, before)
    with other_order(bench.model), small.applied(bench.model):
        assert torch.equal(weight, before)


@cache
def embedded(dtype: str, shots: int = 8, queries: int = 10) -> Bench:
    model = Model.load("embedded", device="cpu", dtype=dtype)
    episode = Episode.draw(Task.load("embedded-sst2"), shots=shots, queries=queries)
    return Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))


def case_of(bench: Bench, learned: Learned) -> Case:
    return Case(
        bench.zero_shot,
        Result(LearnerSpec("gd"), "hypothesis", learned),
        bench.result(IN_CONTEXT),
        output_bias=bench.model.output_bias,
        reread=bench.reread(learned),
    )


def change(bench: Bench, trace: Trace, of: str) -> Tensor:
    return torch.nan_to_num(getattr(trace, of).double() - getattr(bench.zero_shot, of).double()).flatten(2)


@pytest.mark.parametrize("lr", [1e-5, 1e-3])
def test_the_guard_sees_what_float64_sees(lr: float) -> None:
    """True noise: how far the float32 change is from the float64 one. The guard is within a factor of it."""
    narrow, wide = embedded("float32"), embedded("float64")
    learned, exact = narrow.learned("gd", lr), wide.learned("gd", lr)
    # What the old guard compared: another batch size, below the last layer bitwise the same.
    assert learned.delta is not None
    with learned.delta.applied(narrow.model):
        again = narrow.model.read(narrow.lesson, batch_size=5).attn_out
        assert torch.equal(again[:, :-1], learned.trace.attn_out[:, :-1])
    case = case_of(narrow, learned)
    assert case.reread is not None
    found = sizes(case, case.reread)
    for name, of in (("snr", "attn_out"), ("snr_scores", "attn_scores")):
        wrong = (change(narrow, learned.trace, of) - change(wide, exact.trace, of)).norm(dim=-1).sum(0)
        # A change that float32 rounds away is exactly zero, and has no value that could be wrong.
        moved = change(narrow, learned.trace, of).norm(dim=-1).sum(0) > 0
        assert int(moved.sum()) >= len(moved) - 1
        seen, wrong = found[name].noise.sum(0)[moved], wrong[moved]
        assert bool((seen > 0.5 * wrong).all()), (name, seen / wrong)
        assert bool((seen < 20 * wrong).all()), (name, seen / wrong)
    rows = {(r["metric"], r["layer"]): r["value"] for r in measure(case).rows}
    right = {(r["metric"], r["layer"]): r["value"] for r in measure(case_of(wide, exact)).rows}
    guards = {
        "sim_aou": "snr",
        "sim_aou_centered": "snr_centered",
        "sim_aou_orthogonal": "snr_orthogonal",
        "sim_am_delta": "snr_scores",
    }
    wrong_numbers = 0
    for metric, guard in guards.items():
        for layer in range(6):
            if abs(rows[metric, layer] - right[metric, layer]) > 0.02:
                wrong_numbers += 1
                assert rows[guard, layer] < SNR_THRESHOLD, (metric, layer)
            assert right[guard, layer] > 1e3  # float64 is well above rounding
    if lr == 1e-5:
        assert wrong_numbers > 5
        assert rows["snr_low_layers", None] >= 4
    assert right["snr_low_layers", None] == 0


def test_in_context_is_far_above_rounding() -> None:
    bench = embedded("float32")
    rows = {r["metric"]: r["value"] for r in measure(case_of(bench, bench.learned("in-context"))).rows}
    assert rows["snr"] > 1e3
    assert rows["snr_low_layers"] == 0


@pytest.mark.slow
def test_sensitive_training_is_seen() -> None:
    """Linearised GD diverges at this rate: float32 and float64 end elsewhere, and no reading alone would tell."""
    narrow, wide = embedded("float32", 32), embedded("float64", 32)
    learned, exact = narrow.learned("gd-linearized", 1.0), wide.learned("gd-linearized", 1.0)
    case = case_of(narrow, learned)
    rows = {(r["metric"], r["layer"]): r["value"] for r in measure(case, ["sim_aou", "snr"]).rows}
    right = {r["layer"]: r["value"] for r in measure(case_of(wide, exact), ["sim_aou"]).rows}
    for layer in range(6):
        if abs(rows["sim_aou", layer] - right[layer]) > 0.02:
            assert rows["snr", layer] < SNR_THRESHOLD
    assert rows["snr", None] < SNR_THRESHOLD


def test_the_linearised_trace_is_zero_shot_plus_the_tangent() -> None:
    """A change of a millionth of the output keeps its direction in float32: nothing is lost in the sum."""
    narrow, wide = embedded("float32"), embedded("float64")
    learned, exact = narrow.learned("gd-linearized", 1e-6), wide.learned("gd-linearized", 1e-6)
    for of in ("attn_out", "attn_scores"):
        ours, true = change(narrow, learned.trace, of), change(wide, exact.trace, of)
        assert float((ours - true).norm() / true.norm()) < 1e-2
    rows = {r["metric"]: r["value"] for r in measure(case_of(narrow, learned), ["snr", "snr_scores"]).rows}
    assert rows["snr"] > SNR_THRESHOLD
    assert rows["snr_scores"] > SNR_THRESHOLD


@pytest.mark.parametrize(
    "learner",
    ["gd", "lcgd", "gd-linearized", "in-context", "null-context", "zero-shot-offset", "dilution", "gd/random-update"],
)
def test_every_learner_that_changes_something_is_read_again(learner: str) -> None:
    bench = tiny_bench("gpt2", torch.float32, shots=3, queries=4)
    learned = bench.learned(learner, 0.1)
    again = bench.reread(learned)
    assert again is not None
    assert again.trace.query_ids == again.zero_shot.query_ids
    torch.testing.assert_close(
        again.trace.attn_out, learned.trace.attn_out.to(again.trace.attn_out), rtol=1e-3, atol=1e-3
    )
    assert not torch.equal(again.trace.attn_out, learned.trace.attn_out.to(again.trace.attn_out))


def test_a_learner_that_changes_nothing_is_not() -> None:
    bench = tiny_bench("gpt2", torch.float32, shots=3, queries=4)
    assert bench.reread(bench.learned("probe")) is None
    assert bench.reread(replace(bench.learned("probe"), trace=bench.zero_shot)) is None


def test_what_is_not_flagged_is_right_to_the_verdicts_margin() -> None:
    """A change off by one part in so many turns by at most that much, and the verdict's margin is 0.02."""
    assert 1 / SNR_THRESHOLD <= SMALL
