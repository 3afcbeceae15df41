"""Language models with and without momentum attention: trained on the same text, compared by seed."""

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
