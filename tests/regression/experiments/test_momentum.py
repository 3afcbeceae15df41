"""Language models with and without momentum attention: trained on the same text, compared by seed."""

from dualscope.regression import EXPERIMENTS


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
