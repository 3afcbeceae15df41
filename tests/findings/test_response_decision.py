"""Re-pairing: what is related is found, and what only shares the draws or the queries is not."""

import math
from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from benchmarks.response_rates import NULLS, QUERIES, alike, pair_of, world

from dualscope.core.response_products import given_copying, weighted
from dualscope.findings.response_decision import (
    WAYS,
    EpisodePair,
    OverSeeds,
    Way,
    decide,
    fisher,
    random_pairings,
    repairing_test,
    simultaneous,
)

COUNT = 399


def episodes(name: str, n: int, seed: int) -> list[EpisodePair]:
    rng = np.random.default_rng(seed)
    make = alike(0.7) if name == "related" else NULLS[name]
    return [pair_of(*make(world(rng), rng)) for _ in range(n)]


def _size(pair: EpisodePair, way: Way) -> Any:
    return pair.levels if way == "draws" else len(pair.parts[0].products.queries)


def _pairings(pair: EpisodePair, way: Way, count: int, rng: np.random.Generator) -> np.ndarray:
    return random_pairings((_size(pair, way),), count, (int(rng.integers(2**31)),))[0]


@pytest.mark.parametrize("way", WAYS)
def test_looking_up_all_parts_at_once_is_looking_up_each(way: Way) -> None:
    """Against plain loops over pairings, parts and places; some parts copy, others do not."""
    pairs = [*episodes("related", 2, 5), *episodes("a copier, ICL copies and learns", 2, 6)]
    parts = tuple(replace(part, weight=1.0 + n) for n, pair in enumerate(pairs) for part in pair.parts)
    assert {part.copying is not None and part.copying.is_reproducible for part in parts} == {True, False}
    pair = EpisodePair(parts, pairs[0].levels)
    pairings = random_pairings((_size(pair, way),), 20, (4,))[0]
    wanted = []
    for chosen in pairings.T:
        values = []
        for part in parts:
            total = sum(getattr(part.products, way)[r, s] for r, s in enumerate(chosen))
            own = 0.0
            if part.copying is not None:
                own = sum(getattr(part.copying.with_own, way)[r, s] for r, s in enumerate(chosen))
            values.append(given_copying(total, own, part.products, part.copying))
        wanted.append(weighted(np.array(values), [part.weight for part in parts]))
    assert pair.repaired(pairings, way) == pytest.approx(np.array(wanted), abs=1e-12)
    assert (np.sort(pairings, 0) == np.arange(len(pairings))[:, None]).all()


def test_what_is_related_is_found() -> None:
    found = repairing_test(episodes("related", 3, 0), count=COUNT)
    assert found.p == pytest.approx(1 / (COUNT + 1))
    assert found.z > 5
    assert found.band[0] < 0 < found.band[1]


@pytest.mark.parametrize("name", list(NULLS))
def test_what_is_not_related_is_rarely_found(name: str) -> None:
    p = [repairing_test(episodes(name, 3, seed), count=COUNT).p for seed in range(60)]
    assert np.mean(np.array(p) < 0.05) <= 0.14  # 60 tests at 5 %: more than 8 in one of 60


def test_each_re_pairing_alone_is_too_easy() -> None:
    """Two learners follow one label, each in queries of its own: only the queries' re-pairing tells them apart."""
    rejected = {"draws": 0, "queries": 0}
    rng = np.random.default_rng(0)
    for _ in range(60):
        here = world(rng)
        both = [here.labels[:, -1:] * rng.standard_normal(QUERIES) for _ in range(2)]
        known = pair_of(both[0], both[1], [rng.standard_normal(both[0].shape) for _ in range(4)])
        for way in WAYS:
            values = known.repaired(_pairings(known, way, 199, rng), way)
            rejected[way] += (1 + (values >= known.value - 1e-12).sum()) / 200 < 0.05
    assert rejected["draws"] > 10
    assert rejected["queries"] <= 8


def test_the_p_value_is_the_larger_of_the_two() -> None:
    rng = np.random.default_rng(3)
    here, weights = world(rng), rng.standard_normal(QUERIES)
    other = 0.2 * weights + rng.standard_normal(QUERIES)  # the same label, hardly in the same queries
    both = [here.labels[:, -1:] * own for own in (weights, other)]
    known = pair_of(both[0], both[1], [rng.standard_normal(both[0].shape) for _ in range(4)])
    p = []
    for number, way in enumerate(WAYS):
        values = known.repaired(random_pairings((_size(known, way),), COUNT, (0, 22, number))[0], way)
        p.append((1 + (values >= known.value - 1e-12).sum()) / (COUNT + 1))
    assert max(p) > 2 * min(p)
    assert repairing_test([known], count=COUNT).p == pytest.approx(max(p))


def test_the_p_value_is_that_of_all_pairings_within_levels() -> None:
    """Against the plain enumeration of every permutation within levels."""
    pair = episodes("related", 1, 1)[0]
    part = pair.parts[0]
    four = [0, 1, 2, 6, 7, 8]
    small = EpisodePair(
        (
            type(part)(
                part.reference,
                part.part,
                None,
                type(part.products)(
                    part.products.draws[np.ix_(four, four)],
                    part.products.queries,
                    part.products.reference,
                    part.products.own,
                ),
            ),
        ),
        ("chance",) * 3 + ("half",) * 3,
    )
    gram = part.products.draws[np.ix_(four, four)]
    every = [
        sum(gram[k, pairing[k]] for k in range(6))
        for pairing in ((*a, *b) for a, b in product(permutations(range(3)), permutations(range(3, 6))))
    ]
    scale = np.sqrt(part.products.reference * part.products.own)
    drawn = small.repaired(random_pairings((small.levels,), 20_000, (0,))[0], "draws")
    assert set(np.round(drawn, 9)) == set(np.round(np.array(every) / scale, 9))
    assert np.mean(drawn) == pytest.approx(np.mean(every) / scale, abs=2e-3)


def test_a_value_that_no_pairing_reaches_has_the_smallest_p() -> None:
    assert repairing_test([], count=COUNT).p != repairing_test([], count=COUNT).p  # NaN: nothing to test


def seeds(value: float, spread: float = 0.02, n: int = 5, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(n)
    noise -= noise.mean()
    return list(np.tanh(np.arctanh(value) + spread * noise))


def test_every_word() -> None:
    target = seeds(0.8, seed=1)
    assert decide(seeds(0.78), target, 0.001).word == "alike"
    assert decide(seeds(0.02), target, 0.001).word == "different"
    assert decide(seeds(0.45), target, 0.001).word == "partly alike"
    assert decide(seeds(0.45), target, 0.2).word == "cannot tell"
    few = decide(seeds(0.78, n=2), target[:2], 0.001)
    assert (few.word, few.seeds_needed) == ("cannot tell", 3)


def test_the_margins() -> None:
    exact = [0.8] * 5  # no spread: the bounds are the means
    assert decide([0.651] * 5, exact, 0.001).word == "alike"
    assert decide([0.649] * 5, exact, 0.001).word == "partly alike"
    assert decide([0.199] * 5, exact, 0.001).word == "different"
    assert decide([0.201] * 5, exact, 0.001).word == "partly alike"
    assert decide([0.201] * 5, exact, 0.0501).word == "cannot tell"


def test_another_family_that_comes_clearly_closer_denies_alike() -> None:
    target = [0.7] * 5
    mine = seeds(0.65)
    assert decide(mine, target, 0.001, rivals={"probe": seeds(0.66, seed=3)}).word == "alike"
    assert decide(mine, target, 0.001, rivals={"probe": seeds(0.9, seed=3)}).word == "partly alike"
    assert decide(mine, target, 0.001, rivals={"probe": [math.nan] * 5}).word == "alike"


def test_a_closer_rival_is_held_to_an_interval_that_holds_for_all_rivals() -> None:
    mine, target = [0.65] * 5, [0.7] * 5
    apart = np.array([0.02, 0.08, 0.05, 0.1, 0.0])  # t = 3.3 over 5 seeds: past .975, not past 1 - .025 / 10
    apart = 0.06 + (apart - apart.mean())
    near = list(np.tanh(fisher(mine) + apart))
    t = apart.mean() / (apart.std(ddof=1) / math.sqrt(5))
    assert 2.776 < t < 5.6
    assert decide(mine, target, 0.001, rivals={"near": near}).word == "partly alike"
    far = {f"far {i}": [0.1] * 5 for i in range(9)}
    assert decide(mine, target, 0.001, rivals={"near": near, **far}).word == "alike"


def test_how_many_seeds_would_do() -> None:
    wide = decide(seeds(0.7, 0.6, n=4), seeds(0.8, 0.3, n=4, seed=2), 0.3, z=0.1)
    assert wide.word == "cannot tell"
    assert wide.seeds_needed is not None
    assert wide.seeds_needed > 4
    # By the test alone: z grows with the root of the number of seeds.
    near = decide(seeds(0.4, 0.9, n=4), seeds(0.8, 0.9, n=4, seed=2), 0.3, z=1.3)
    assert near.seeds_needed == 7  # 1.3 x sqrt(7/4) > 1.645
    never = decide([0.5, 0.2, 0.8], [0.9, 0.5, 0.3], 0.9, z=-2.0)
    assert never.word == "cannot tell"


def test_a_true_one_is_alike_and_one_at_the_margin_is_not() -> None:
    """5 seeds, a spread of .2 in Fisher's z: a true one is found in four of five studies, one at the margin in 5 %."""
    rng = np.random.default_rng(0)
    found: dict[float, Counter[str]] = {}
    for truth in (0.75, 0.60):
        words = [
            decide(np.tanh(np.arctanh(truth) + 0.2 * rng.standard_normal(5)), [0.75] * 5, 0.001).word
            for _ in range(1500)
        ]
        found[truth] = Counter(words)
    assert found[0.75]["alike"] / 1500 > 0.78
    assert found[0.60]["alike"] / 1500 < 0.075


def test_the_mean_is_fishers_and_the_interval_students() -> None:
    values = [0.2, 0.5, 0.7]
    z = np.arctanh(values)
    reach = 4.302653 * z.std(ddof=1) / math.sqrt(3)
    found = OverSeeds.of([*values, math.nan])
    assert found.mean == pytest.approx(math.tanh(z.mean()))
    assert found.low == pytest.approx(math.tanh(z.mean() - reach), abs=1e-6)
    assert found.seeds == pytest.approx(tuple(values))
    assert math.isnan(OverSeeds.of([0.3]).low)
    assert math.isnan(OverSeeds.of([]).mean)


def test_simultaneous_intervals_cover_all_of_ten_equal_hypotheses() -> None:
    rng = np.random.default_rng(0)
    covered = best = 0
    for _ in range(400):
        values = {str(i): np.tanh(np.arctanh(0.4) + 0.2 * rng.standard_normal(5)) for i in range(10)}
        found = simultaneous({name: list(own) for name, own in values.items()})
        covered += all(one.low < 0.4 < one.high for one in found.values())
        top = max(found.values(), key=lambda one: one.mean)
        best += top.low < 0.4 < top.high
    assert covered / 400 > 0.93
    assert best / 400 > 0.95


def test_fisher_takes_a_perfect_correlation() -> None:
    assert np.isfinite(fisher([1.0, -1.0])).all()
