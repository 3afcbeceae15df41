"""Batches of mixed lengths give every query the numbers that it has alone."""

import pytest
import torch

from dualscope.models import Model
from dualscope.models.reading.batches import batches_of
from tests.models.lessons import random_lesson
from tests.models.oracle import oracle
from tests.models.reading.test_read import EVERYTHING, TOLERANCE, assert_same
from tests.models.tiny import tiny_model


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "llama", "xglm", "gptj", "qwen3", "olmo2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_against_the_oracle(family: str, dtype: torch.dtype) -> None:
    hf, tokenizer = tiny_model(family, dtype)
    model, lesson = Model(hf, tokenizer), random_lesson()
    model.mixes_lengths = True
    assert len({len(lesson.queries[i]) for i in next(batches_of(model, lesson, None, 4)).queries}) > 1
    trace = model.read(lesson, model.prefix(lesson.context), want=EVERYTHING, batch_size=4)
    assert_same(trace, oracle(hf, lesson, lesson.context), TOLERANCE[dtype])
    alone = model.read(lesson, want=EVERYTHING - {"context_scores", "context_products"}, batch_size=4)
    assert_same(alone, oracle(hf, lesson, lesson.bos), TOLERANCE[dtype])


def test_what_follows_the_read_position_must_not_matter_for_labels_of_several_tokens() -> None:
    hf, tokenizer = tiny_model("gpt2", torch.float64)
    model, lesson = Model(hf, tokenizer), random_lesson(answers=((16,), (19, 16)))
    model.mixes_lengths = True
    for batch in batches_of(model, lesson, None, 4):
        assert len({len(lesson.queries[i]) for i in batch.queries}) == 1


@pytest.mark.parametrize("family", ["mistral", "gpt_neo", "bloom"])
def test_windows_and_distances_keep_lengths_apart(family: str) -> None:
    hf, tokenizer = tiny_model(family, torch.float32)
    assert not Model(hf, tokenizer).mixes_lengths
