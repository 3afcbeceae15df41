"""Null learners: contexts of the same length that teach nothing, and positions that shift."""

from collections import Counter

import pytest
import torch

from dualscope.learners.nulls import filled, scrambled, unlabelled
from tests.learners.setting import tiny_bench
from tests.models import oracle as reading

LR = 0.3


@pytest.mark.parametrize("family", ["llama", "gemma2", "gptj", "bloom"])
def test_a_shift_of_positions_changes_nothing_where_they_are_relative(family: str) -> None:
    bench = tiny_bench(family)
    shifted = bench.learned("zero-shot-offset").trace
    torch.testing.assert_close(shifted.attn_out, bench.zero_shot.attn_out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shifted.attn_scores, bench.zero_shot.attn_scores, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("family", ["gpt2", "xglm"])
def test_a_shift_of_positions_shows_where_they_are_learned(family: str) -> None:
    bench = tiny_bench(family)
    shifted = bench.learned("zero-shot-offset").trace
    assert not torch.allclose(shifted.attn_out, bench.zero_shot.attn_out, rtol=1e-2)
    lesson = bench.lesson
    offset = len(lesson.context) - len(lesson.bos)
    expected = reading.oracle(bench.model.hf, lesson, lesson.bos, offset)
    torch.testing.assert_close(shifted.attn_out, expected["attn_out"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["unlabelled", "scrambled", "other-task"])
def test_null_contexts_have_the_same_length(kind: str) -> None:
    bench = tiny_bench(other=True)
    lesson = bench.lesson
    context = {
        "unlabelled": unlabelled(lesson),
        "scrambled": scrambled(lesson),
        "other-task": filled(lesson, bench.other),
    }[kind]
    assert len(context) == len(lesson.context)
    assert context != lesson.context
    assert context[:1] == lesson.bos
    assert context[-1:] == lesson.separator
    trace = bench.learned("null-context", kind=kind).trace
    expected = reading.oracle(bench.model.hf, lesson, context)
    torch.testing.assert_close(trace.attn_out, expected["attn_out"], rtol=1e-8, atol=1e-8)


def test_what_null_contexts_hold() -> None:
    bench = tiny_bench(other=True)
    lesson, answers = bench.lesson, {t for answer in bench.lesson.answers for t in answer}
    assert not answers & set(unlabelled(lesson))
    assert Counter(scrambled(lesson)) == Counter(lesson.context)
    long, short = bench.other.context, lesson.context
    assert filled(lesson, bench.other)[-8:] == (long * 3)[-8:]
    assert len(filled(bench.other, lesson)) == len(long)
    assert len(short) != len(long)


def test_nulls_can_be_read_again() -> None:
    bench = tiny_bench(shots=3, queries=5)
    for name in ("null-context", "zero-shot-offset", "in-context/redraw", "in-context/reorder"):
        learned = bench.learned(name)
        assert learned.again is not None
        torch.testing.assert_close(learned.again(bench.lesson).attn_out, learned.trace.attn_out)
