"""Every fast path against the slow oracle, for all architectures."""

import pytest
import torch
from torch import Tensor

from dualscope.models import Model
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
