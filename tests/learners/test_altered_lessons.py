"""Lessons that controls teach from: redrawn, reordered, with other labels, and of the same length."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.learners import Bench
from dualscope.learners.altered_lessons import as_long_as, of_the_same_length, redrawn, relabelled, reordered
from dualscope.tasks.mapping import Example
from tests.learners import oracle
from tests.learners.setting import tiny_bench, tiny_lesson, tiny_task, wrapped

LR = 0.3


@pytest.mark.parametrize("balanced", [False, True])
def test_redrawn(balanced: bool) -> None:
    bench = tiny_bench(shots=4, balanced=balanced)
    lesson = bench.lesson
    again = redrawn(lesson, bench.model)
    assert again.queries == lesson.queries
    assert again.context != lesson.context
    if balanced:
        assert Counter(d.label_index for d in again.demonstrations) == Counter({0: 2, 1: 2})
    asked = set(lesson.query_ids)
    assert not asked & {d.id for d in again.demonstrations}
    for name, other in (("in-context/redraw", again), ("gd/redraw", again)):
        taught = Bench(bench.model, other)
        lr = LR if name.startswith("gd") else None
        expected = taught.learned("gd", LR).trace if lr else taught.in_context
        torch.testing.assert_close(bench.learned(name, lr).trace.attn_out, expected.attn_out)
    assert redrawn(lesson, bench.model, 2).context != again.context


@pytest.mark.parametrize("options", [{}, {"balanced": True}, {"demo_labels": "random"}, {"demo_labels": "flipped"}])
def test_a_redrawn_context_is_as_long_to_the_token(options: dict[str, Any]) -> None:
    """Label words of one token and of two, a small pool: what no example makes up for is cut or filled at the front."""
    model = wrapped("gpt2")
    for seed in range(8):
        lesson = tiny_lesson(model, shots=4, seed=seed, **options)
        for draw in (1, 2):
            again = redrawn(lesson, model, draw)
            assert len(again.context) == len(lesson.context)
            assert again.shots_used == lesson.shots_used
            shown = {d.id for d in lesson.demonstrations}
            assert not shown & {d.id for d in again.demonstrations}  # 20 examples: there are others
            for one in again.demonstrations:
                tokens = one.prompt + one.label
                assert again.context[one.start : one.start + len(tokens)] == tokens
            assert [d.start for d in again.training] == [d.start for d in again.demonstrations]
            labels = again.episode.labels("icl")
            assert [d.label_index for d in again.demonstrations] == list(labels)


def test_nothing_is_cut_where_the_data_have_the_lengths() -> None:
    """With many texts of every length each demonstration is replaced by one as long as itself."""
    model, task = wrapped("gpt2"), tiny_task(n=4000, labels=("Negative", "Positive"))
    lesson = tiny_lesson(model, shots=8, task=task)
    again = redrawn(lesson, model)
    assert [len(d.prompt) for d in again.demonstrations] == [len(d.prompt) for d in lesson.demonstrations]
    texts = {example.id: task.prompt(example) for example in task.train}
    encoded = model.tokenizer([texts[d.id] for d in again.demonstrations])["input_ids"]
    assert [tuple(tokens) for tokens in encoded] == [d.prompt for d in again.demonstrations]


def test_what_is_too_short_is_made_up_for_by_the_next() -> None:
    """Two demonstrations of n tokens, and only texts of n - 1 and n + 1 to take: one of each, in any order."""
    model, task = wrapped("gpt2"), tiny_task(n=400, labels=("Negative", "Positive"))
    lesson = tiny_lesson(model, shots=2, task=task)
    own = {example.id for example in lesson.episode.demonstrations}
    lengths: dict[int, list[Example]] = {}
    for example in task.train:
        tokens = model.tokenizer([task.prompt(example)])["input_ids"][0]
        if example.id not in own:
            lengths.setdefault(len(tokens), []).append(example)
    n = next(n for n in sorted(lengths) if len(lengths[n]) > 1 and n + 2 in lengths) + 1
    shown = tuple(replace(d, prompt=(d.prompt * n)[:n]) for d in lesson.demonstrations)
    short, long = lengths[n - 1][:2], lengths[n + 1][:1]
    for candidates in ([*short, *long], [*long, *short]):
        taken = as_long_as(replace(lesson, demonstrations=shown), candidates, model.tokenizer)
        assert {example.id for example in taken} == {short[0].id, long[0].id}


def test_a_much_longer_redraw_is_cut_from_the_front() -> None:
    """No candidate is as short as these demonstrations."""
    model = wrapped("gpt2")
    long = tiny_lesson(model, shots=3, seed=1)
    short = replace(
        long,
        demonstrations=tuple(replace(d, prompt=d.prompt[-1:]) for d in long.demonstrations),
        context=long.context[: len(long.bos) + 3 * 2 + sum(len(d.label) for d in long.demonstrations)],
    )
    again = of_the_same_length(long, short)
    assert len(again.context) == len(short.context)
    assert all(d.prompt for d in again.demonstrations)
    assert again.demonstrations[0].prompt == long.demonstrations[0].prompt[-1:]


def test_a_redraw_keeps_to_all_demonstrations_and_says_how_many_it_used() -> None:
    model = wrapped("gpt2")
    for seed in range(12):
        lesson = tiny_lesson(model, shots=6, seed=seed, max_positions=100, gd_demonstrations="all")
        again = redrawn(lesson, model)
        assert len(again.training) == 6
        assert Bench(model, lesson).learned("in-context/redraw").shots_used == again.shots_used
        assert Bench(model, lesson).learned("gd/redraw", LR).shots_used == again.shots_used


@pytest.mark.parametrize("corrupt", ["both", "icl"])
def test_random_labels_are_others_than_the_episodes_own_random_ones(corrupt: str) -> None:
    lesson = tiny_bench(shots=12, demo_labels="random", corrupt=corrupt).lesson
    taught = [d.label_index for d in relabelled(lesson, 1000).training]
    assert taught != list(lesson.episode.labels("icl"))
    assert taught != [d.label_index for d in lesson.training]


def test_reordered() -> None:
    bench = tiny_bench(shots=4, demo_labels="random")
    lesson = bench.lesson
    again = reordered(lesson)
    assert [d.id for d in again.demonstrations] != [d.id for d in lesson.demonstrations]
    labels = [{d.id: d.label_index for d in one.demonstrations} for one in (lesson, again)]
    assert labels[0] == labels[1]
    # The very lesson that an episode of that order makes.
    episode = again.episode
    expected = tiny_lesson(bench.model, shots=4, demo_labels="random", order=episode.order)
    assert again.context == expected.context
    assert again.demonstrations == expected.demonstrations
    assert again.training == expected.training
    assert again.episode.demonstrations == expected.episode.demonstrations
    trace = bench.learned("in-context/reorder").trace
    torch.testing.assert_close(trace.attn_out, Bench(bench.model, expected).in_context.attn_out)
    delta, given = bench.learned("gd/reorder", LR).delta, Bench(bench.model, expected).learned("gd", LR).delta
    assert delta is not None
    assert given is not None
    assert oracle.worst(delta, dict(given)) <= 1e-12
    with pytest.raises(InputError, match="at least 2 shots"):
        tiny_bench(shots=1).learned("in-context/reorder")
    two = tiny_bench(shots=2).lesson
    assert all(reordered(two, draw).context != two.context for draw in range(1, 6))


def test_reordered_keeps_what_has_no_room() -> None:
    model = wrapped("gpt2")
    lesson = tiny_lesson(model, shots=6, max_positions=60, gd_demonstrations="all")
    again = reordered(lesson)
    n = lesson.shots_used
    assert 2 <= n < 6
    assert again.training[n:] == lesson.training[n:]
    assert len(again.context) == len(lesson.context)
    assert [d.start for d in again.training[:n]] == [d.start for d in again.demonstrations]
