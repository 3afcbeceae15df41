"""The rule of the response's answer: every word has data that gives it."""

import math
from collections import Counter

import numpy as np
import pytest

from dualscope.findings.response_rule import OverSeeds, decide, fisher, simultaneous


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
