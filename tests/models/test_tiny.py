"""The factory that other tests build on."""

import pytest
import torch

from tests.models.tiny import FAMILIES, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_same_weights_in_every_dtype(family: str) -> None:
    narrow, _ = tiny_model(family, seed=5)
    wide, _ = tiny_model(family, torch.float64, seed=5)
    other, _ = tiny_model(family, seed=6)
    assert all(torch.equal(a.double(), b) for a, b in zip(narrow.parameters(), wide.parameters(), strict=True))
    assert not torch.equal(next(narrow.parameters()), next(other.parameters()))


def test_tokenizer_has_several_token_labels_and_adds_nothing() -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer(" Very Positive").input_ids) == 2
    assert tokenizer("good").input_ids != [tokenizer.unk_token_id]
    assert tiny_tokenizer(bos=False).bos_token_id is None
