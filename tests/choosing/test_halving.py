"""Successive halving, by hand and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualscope.choosing.halving import ENOUGH, GRID, LEFT_OUT, MOST, RATES, UNTAUGHT, Rounds, Score, Search, judges
from dualscope.core.canonical import canonical
from dualscope.core.errors import InputError
from dualscope.learners import Bench
from tests.learners.setting import tiny_lesson, tiny_task, wrapped


def lr(value: float) -> str:
    return canonical({"lr": value})


def run(search: Search, scores: dict[float, Score], examples: int = MOST) -> list[int]:
    """A whole search in which a candidate does alike on all examples; how many were tried in each round."""
    tried = []
    while not search.is_over:
        first, last = search.rounds.examples_of(search.number)
        n = max(0, min(last, examples) - first)
        known = {lr(value): score for value, score in scores.items()}
        candidates = [name for name in known if search.candidates is None or name in search.candidates]
        tried.append(len(candidates))
        found = {name: Score(known[name].right * n, known[name].nll * n, n) for name in candidates}
        search.take({seed: {**found, UNTAUGHT: Score(0, n, n)} for seed in search.seeds})
    return tried


def test_ties_go_to_likelihood_and_then_to_the_first_candidate() -> None:
    for surest, best in ((2.0, 0.1), (3.0, 0.1), (float("inf"), 1.0)):
        search = Search(Rounds(), [0])
        run(search, {0.1: Score(5, surest), 0.3: Score(4, 0.1), 1.0: Score(5, 3.0)})
        assert search.choice().settings == {"lr": best}


def test_rounds_go_on_with_the_better_half() -> None:
    search = Search(RATES, [0, 1])
    assert run(search, {rate: Score(number, 1.0) for number, rate in enumerate(GRID)}) == [11, 6, 3, 3]
    choice = search.choice()
    assert choice.settings == {"lr": GRID[-1]}
    assert choice.at_edge
    assert choice.n == 2 * MOST
    assert {row["n"] for row in choice.curve if row.get("lr") == GRID[0]} == {25}
    assert sum("lr" not in row for row in choice.curve) == 2  # the model before any learning, of each seed
    assert RATES.most_tried(11) == [(11, 25), (6, 25), (3, 50), (3, 100)]


def test_no_more_examples_than_there_are() -> None:
    for examples, rounds in ((30, 2), (25, 2), (200, 4)):
        search = Search(RATES, [0])
        assert len(run(search, {rate: Score(number, 1.0) for number, rate in enumerate(GRID)}, examples)) == rounds
        assert search.choice().n == examples


def test_what_grows_from_round_to_round_may_have_been_best_before() -> None:
    rounds = Rounds((10,), grows="epochs", values=(1, 3), keep=1 / 3)
    search = Search(rounds, [0])
    names = {value: rounds.settings_of(0, {"lr": value}) for value in (0.1, 0.3, 1.0)}
    search.take(
        {0: {canonical(one): Score(right, 1.0, 10) for one, right in zip(names.values(), (3, 9, 5), strict=True)}}
    )
    assert search.candidates == (lr(0.3),)
    search.take({0: {canonical(rounds.settings_of(1, {"lr": 0.3})): Score(8, 1.0, 10)}})
    assert search.is_over
    assert search.choice().settings == {"lr": 0.3, "epochs": 1}
    assert not search.choice().at_edge


@given(st.lists(st.integers(0, 25), min_size=len(GRID), max_size=len(GRID)), st.integers(1, 300))
def test_one_that_is_best_everywhere_is_found(right: list[int], examples: int) -> None:
    best = GRID[len(right) // 2]
    search = Search(RATES, [3, 5])
    tried = run(
        search, {rate: Score(26 if rate == best else n, 1.0) for rate, n in zip(GRID, right, strict=True)}, examples
    )
    choice = search.choice()
    assert choice.settings == {"lr": best}
    assert not choice.at_edge
    assert tried[0] == len(GRID)
    assert min(tried) >= RATES.fewest
    assert choice.n == 2 * min(examples, MOST)


def bench_of(examples: int) -> Bench:
    model = wrapped("gpt2")
    return Bench(model, tiny_lesson(model, task=tiny_task(n=examples), shots=3, queries=4))


@pytest.mark.parametrize("materials", [5, 20, 64])
def test_a_setting_is_chosen_on_other_examples_than_the_learner_reads(materials: int) -> None:
    bench = bench_of(400)
    read = set(bench.materials(materials, "it").query_ids)
    assert len(read) == materials
    (judge,) = judges(bench, materials)
    asked = set(judge.lesson.query_ids)
    assert len(asked) >= ENOUGH
    assert not asked & read
    taught = {d.id for d in bench.lesson.demonstrations}
    assert not asked & (taught | set(bench.lesson.query_ids))


def test_what_the_learner_reads_does_not_count_as_enough() -> None:
    bench = bench_of(160)
    left = len(bench.spare)
    assert left >= ENOUGH
    with pytest.raises(InputError, match="besides the"):
        judges(bench, left - ENOUGH + 1)


def test_where_no_example_is_spare_demonstrations_are_asked_in_turn() -> None:
    model = wrapped("gpt2")
    lesson = tiny_lesson(model, task=tiny_task(n=60), shots=LEFT_OUT + 2, queries=4)
    found = judges(Bench(model, lesson, spare=[]), materials=7)
    assert len(found) == LEFT_OUT
    for judge, left_out in zip(found, lesson.demonstrations, strict=False):
        assert judge.lesson.query_ids == (left_out.id,)
        assert left_out.id not in {one.id for one in (*judge.lesson.demonstrations, *judge.lesson.training)}
