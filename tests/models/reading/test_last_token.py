"""Reading the last token again gives what reading the whole prompt again gives."""

import pytest
import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.capture.block_hooks import OnResidual
from dualscope.models.capture.session import Session
from dualscope.models.reading.last_token import read_under_each
from tests.models.lessons import random_lesson
from tests.models.tiny import FAMILIES, default_dtype, tiny_model


def added(layer: int) -> OnResidual:
    def edit(residual: Tensor, _session: Session) -> Tensor:
        return residual + torch.linspace(-2, 2, residual.shape[-1]).to(residual)

    return OnResidual(layer, edit)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("answers", [((16,), (19,)), ((16,), (19, 16))], ids=["one", "several"])
def test_against_reading_the_whole(family: str, answers: tuple[tuple[int, ...], ...]) -> None:
    with default_dtype(torch.float64):
        hf, tokenizer = tiny_model(family, torch.float64)
        model, lesson = Model(hf, tokenizer), random_lesson(answers=answers)
        changes = [added(layer) for layer in range(model.n_layers)]
        found = read_under_each(model, lesson, [(), *((change,) for change in changes)])
        expected = [model.read(lesson).label_logprobs]
        for change in changes:
            with model.intervened(change):
                expected.append(model.read(lesson).label_logprobs)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found[0], found[-1], atol=1e-3)
    assert model.interventions == []


def test_lengths_are_mixed_where_they_may_be() -> None:
    hf, tokenizer = tiny_model("llama", torch.float64)
    model, lesson = Model(hf, tokenizer), random_lesson()
    assert model.mixes_lengths
    assert len({len(query) for query in lesson.queries}) > 1
    before = model.counters["batches"]
    together = read_under_each(model, lesson, [()])
    assert model.counters["batches"] - before == 1
    model.mixes_lengths = False
    torch.testing.assert_close(together, read_under_each(model, lesson, [()]), rtol=1e-9, atol=1e-9)


def test_another_place_is_refused() -> None:
    hf, tokenizer = tiny_model("gpt2", torch.float64)
    with pytest.raises(InputError, match="end of the prompt"):
        read_under_each(Model(hf, tokenizer), random_lesson(read_at="first-label"), [()])
