"""A context that begins like a known one: only the rest is encoded, and nothing changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope.models import Model
from tests.models.lessons import random_lesson
from tests.models.tiny import FAMILIES, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kept", [1, 7, 30])
def test_a_continued_prefix_is_the_whole_one(family: str, kept: int) -> None:
    hf, tokenizer = tiny_model(family, torch.float64)
    model, lesson = Model(hf, tokenizer), random_lesson()
    changed = (*lesson.context[:kept], *reversed(lesson.context[kept:]))
    known = model.prefix(lesson.context)
    shared = known.shared_with(changed)
    assert shared >= kept
    before = model.counters["prefix tokens"]
    found, whole = model.prefix(changed, known), model.prefix(changed)
    assert model.counters["prefix tokens"] - before == 2 * len(changed) - shared
    assert found.tokens == whole.tokens == changed
    for one, other in zip((*found.keys, *found.values), (*whole.keys, *whole.values), strict=True):
        assert (one - other).abs().max() <= 1e-12
    with_it, without = model.read(lesson, found), model.read(lesson, whole)
    assert (with_it.label_logprobs - without.label_logprobs).abs().max() <= 1e-12


def test_a_shorter_context_needs_no_pass() -> None:
    hf, tokenizer = tiny_model("gpt2")
    model, lesson = Model(hf, tokenizer), random_lesson()
    known = model.prefix(lesson.context)
    passes = model.counters["prefixes"]
    assert model.prefix(lesson.context, known).tokens == tuple(lesson.context)
    assert len(model.prefix(lesson.context[:5], known)) == 5
    assert model.counters["prefixes"] == passes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_what_two_contexts_share(left: list[int], right: list[int]) -> None:
    from dualscope.models.reading.prefix import Prefix

    shared = Prefix(tuple(left), (), ()).shared_with(right)
    assert left[:shared] == right[:shared]
    assert shared == min(len(left), len(right)) or left[shared] != right[shared]
