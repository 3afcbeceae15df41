"""Parts of an experiment as one."""

from dualscope.regression.emergence import APPEARS
from dualscope.regression.results import Results


def trained(seeds: list[int], values: dict[int, float], appears: int | None) -> Results:
    """One training of every seed, whose loss at a step is the same for all."""
    results = Results("demo")
    for step, value in values.items():
        results.over_seeds("one layer", "loss", [value] * len(seeds), seeds, x_name="step", x=step)
    for seed in seeds:
        if appears is not None:
            results.add("one layer", APPEARS, appears, x_name="step", x=appears, seed=seed)
    return results


def test_a_training_that_two_parts_have_is_of_the_first() -> None:
    first = trained([0, 1], {0: 1.0, 200: 0.5}, None)
    second = trained([0, 1], {0: 1.0, 100: 0.9, 200: 0.8, 400: 0.1}, 400)
    whole = Results.joined([first, second])
    assert whole.curves("one layer", "loss") == {0: {0: 1.0, 200: 0.5}, 1: {0: 1.0, 200: 0.5}}
    assert not whole.values("one layer", APPEARS)
    means = {row["x"]: (row["value"], row["n"]) for row in whole.rows if row["seed"] is None}
    assert means == {0: (1.0, 2), 200: (0.5, 2)}


def test_other_seeds_of_a_training_are_put_beside() -> None:
    whole = Results.joined([trained([0], {0: 1.0, 200: 0.5}, 200), trained([1], {0: 3.0, 100: 0.9}, 100)])
    assert whole.curves("one layer", "loss") == {0: {0: 1.0, 200: 0.5}, 1: {0: 3.0, 100: 0.9}}
    assert whole.values("one layer", APPEARS) == {0: 200, 1: 100}
    assert {row["x"]: row["n"] for row in whole.rows if row["seed"] is None} == {0: 2}


def test_points_of_one_curve_may_come_from_several_parts() -> None:
    first, second = Results("demo"), Results("demo")
    first.over_seeds("least squares", "distance", [1.0, 2.0], [0, 1], x_name="layers", x=8)
    second.over_seeds("least squares", "distance", [3.0, 5.0], [0, 1], x_name="layers", x=2)
    whole = Results.joined([first, second])
    assert {row["x"]: row["value"] for row in whole.rows if row["seed"] is None} == {8: 1.5, 2: 4.0}


def test_of_a_metric_there_is_one_figure_with_the_last_title() -> None:
    parts = [trained([seed], {0: 1.0}, None) for seed in (0, 1)]
    parts[0].figure("loss", "What a linear probe reads")
    parts[0].figure("accuracy", "Accuracy")
    parts[1].figure("loss", "What a probe reads")
    titles = [(figure.metric, figure.title) for figure in Results.joined(parts).figures]
    assert titles == [("accuracy", "Accuracy"), ("loss", "What a probe reads")]


def test_a_curve_has_a_mean_where_all_of_its_seeds_were_watched() -> None:
    late = trained([1], {0: 1.0, 200: 0.5, 400: 0.1}, None)
    whole = Results.joined([late, trained([0], {0: 3.0, 100: 0.9, 200: 0.7}, None)])
    assert whole.curves("one layer", "loss")[1] == {0: 1.0, 200: 0.5, 400: 0.1}
    means = {row["x"]: (row["value"], row["n"]) for row in whole.rows if row["seed"] is None}
    assert means == {0: (2.0, 2), 200: (0.6, 2)}
