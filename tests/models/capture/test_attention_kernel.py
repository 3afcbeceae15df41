"""The fused kernels of a CUDA device against the oracle. Skips where there is no such device.

The oracle runs on the device too: rotary angles are float32 inside float64 models, and a device rounds its own.
"""

import copy

import pytest
import torch

from dualscope.models import Model
from tests.models.lessons import random_lesson
from tests.models.oracle import oracle
from tests.models.reading.test_read import EVERYTHING, assert_same
from tests.models.tiny import FAMILIES, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_traces_are_the_oracles(family: str, dtype: torch.dtype) -> None:
    hf, tokenizer = tiny_model(family, dtype)
    lesson = random_lesson()
    model = Model(hf.cuda(), tokenizer)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING, batch_size=2)
    assert trace.attn_out.device.type == "cuda"
    with torch.device("cuda"):
        assert_same(trace, oracle(model.hf, lesson, lesson.context), tolerance)
        zero_shot = model.read(lesson, want=EVERYTHING - {"context_scores", "context_products"})
        assert_same(zero_shot, oracle(model.hf, lesson, lesson.bos), tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "bloom", "xglm"])
def test_lower_precisions_are_near(family: str, dtype: torch.dtype) -> None:
    hf, tokenizer = tiny_model(family)
    lesson = random_lesson()
    model = Model(copy.deepcopy(hf).to("cuda", dtype), tokenizer)
    trace = model.read(lesson, model.prefix(lesson.context)).to("cpu")
    assert trace.attn_out.dtype == torch.float32
    assert_same(trace, oracle(hf, lesson, lesson.context), 0.2)


def test_tf32_is_on_only_while_the_model_runs() -> None:
    hf, tokenizer = tiny_model("gpt2", n_embd=256)
    lesson = random_lesson()
    exact, rounded = Model(hf.cuda(), tokenizer), Model(hf, tokenizer, precision="tf32")
    before = torch.get_float32_matmul_precision()
    a, b = (model.read(lesson, model.prefix(lesson.context)).attn_out for model in (exact, rounded))
    assert torch.get_float32_matmul_precision() == before
    gap = float((a - b).abs().max() / a.abs().max())
    assert 1e-6 < gap < 5e-2
