"""Language models with and without momentum attention: trained on the same text, compared by seed."""

from typing import Any

import pytest

from dualscope.core.errors import InputError
from dualscope.regression import EXPERIMENTS, Results


def test_momentum_models_are_compared_by_seed() -> None:
    experiment = EXPERIMENTS["momentum"].quick(steps=2)
    done: list[int] = []
    results = experiment.run(done.append)
    assert sum(done) == experiment.work
    series = {row["series"] for row in results.rows}
    assert series == {"vanilla", "momentum", "momentum minus vanilla"}
    of = {(row["series"], row["seed"]): row["value"] for row in results.rows if row["metric"] == "perplexity"}
    assert 1 < of["vanilla", 0] < 5000
    assert of["momentum", 0] != of["vanilla", 0]
    difference = of["momentum", 1] - of["vanilla", 1]
    assert abs(of["momentum minus vanilla", 1] - difference) < 1e-9
    assert any(row["x"] == 4 and "held-out" in row["metric"] for row in results.rows)


def test_models_of_a_kind_may_be_trained_apart_and_joined() -> None:
    small = {"steps": 2, "seeds": (0,), "mixture": {"canonical": 0.1, "extended": 0.05, "relations": 0.05}}
    kind = EXPERIMENTS["momentum"]
    parts = [kind.quick(**small, kinds=(name,)).run(conclude=False) for name in ("vanilla", "momentum")]
    whole, both = Results.joined(parts), kind.quick(**small)
    both.conclude(whole)
    at_once = both.run()

    def values(results: Results) -> list[tuple[str, str, float]]:
        return sorted((row["series"], row["metric"], row["value"]) for row in results.rows)

    assert values(whole) == values(at_once)
    with pytest.raises(InputError, match="both models"):
        both.conclude(parts[0])
    other = kind.quick(steps=2, seeds=(0,)).run()
    assert values(other) != values(at_once)  # the text is another


def test_a_higher_rate_teaches_more_in_a_few_steps() -> None:
    small = {"steps": 3, "seeds": (0,), "kinds": ("vanilla",)}
    kind = EXPERIMENTS["momentum"]

    def perplexity(rate: float) -> float:
        results = kind.quick(**small, rate=rate).run(conclude=False)
        return next(row["value"] for row in results.rows if row["metric"] == "perplexity")

    untaught, taught, taught_more = (perplexity(rate) for rate in (1e-9, 1e-3, 1e-2))
    assert taught_more < taught < untaught


def concluded(perplexity: float, accuracy: float, begins: dict[str, int]) -> Results:
    """Of three pairs whose second model's figures are so much higher than the first's, give or take a tenth of it."""
    results = Results("momentum")
    experiment = EXPERIMENTS["momentum"].quick(seeds=(0, 1, 2), steps=40)
    for name, more in (("vanilla", 0.0), ("momentum", 1.0)):
        for seed in experiment.seeds:
            about = more * (1 + 0.1 * (seed - 1))
            results.add(name, "perplexity", 3 + seed + perplexity * about, seed=seed)
            where: dict[str, Any] = {"panel": "shots", "x_name": "shots", "x": 8, "seed": seed}
            results.add(name, "accuracy, held-out tasks", 0.1 * (5 + seed) + accuracy * about, **where)
            for step in (10, 20, 30, 40):
                at: dict[str, Any] = {"panel": "training", "x_name": "step", "x": step, "seed": seed}
                results.add(name, "loss on label words", 2 - 0.01 * step, **at)
                learned = step >= begins[name]
                results.add(name, "accuracy, held-out tasks, 8 shots", 0.9 if learned else 0.2, **at)
    experiment.conclude(results)
    return results


def test_momentum_improves_a_model_where_the_whole_interval_says_so() -> None:
    begins = {"vanilla": 30, "momentum": 20}
    for perplexity, accuracy, holds in (
        (-0.03, 0.0, [True, True, False]),
        (-0.03, 0.1, [True, True, True]),
        (0.03, -0.1, [True, False, False]),
        (0.0, 0.1, [True, False, True]),
    ):
        checks = concluded(perplexity, accuracy, begins).checks
        assert [check.holds for check in checks] == holds, (perplexity, accuracy)
        assert "perplexity" in checks[1].claim
        assert f"{perplexity:.4f}" in checks[1].found
        assert "8 shots" in checks[2].claim
        assert f"{accuracy:.4f}" in checks[2].found


def test_how_much_sooner_is_said_where_every_model_begins() -> None:
    sooner = "steps until in-context learning"
    both = concluded(0.0, 0.0, {"vanilla": 30, "momentum": 20})
    assert both.values("momentum minus vanilla", sooner) == {0: -10, 1: -10, 2: -10}
    assert any(row[0] == sooner for row in both.tables[0].rows)
    one = concluded(0.0, 0.0, {"vanilla": 50, "momentum": 20})
    assert not one.checks[0].holds
    assert one.values("momentum minus vanilla", sooner) == {}
    assert not any(row[0] == sooner for row in one.tables[0].rows)
