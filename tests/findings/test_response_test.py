"""Re-pairing: what is related is found, and what only shares the draws or the queries is not."""

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from benchmarks.response_rates import NULLS, QUERIES, alike, pair_of, world

from dualscope.core.response_products import given_copying, weighted
from dualscope.findings.response_test import WAYS, EpisodePair, Way, random_pairings, repairing_test

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
