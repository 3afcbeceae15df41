"""What gradient descent at its best is chosen from, and when the best may lie beyond that."""

import pytest
import torch

from dualscope.choosing.halving import GRID, Score, Search
from dualscope.core.canonical import canonical
from dualscope.learners.gradient.tuned import EPOCHS, RATES, GdTuned, TunedOptions
from tests.learners.setting import wrapped


def test_candidates_are_all_that_is_open() -> None:
    found = GdTuned().candidates(wrapped("gpt2"), TunedOptions.model_validate({}))
    assert len(found) == len({tuple(sorted(one.items())) for one in found}) == 4 * (len(GRID) + 7)
    rates = {which: sorted({one["lr"] for one in found if one["optimiser"] == which}) for which in RATES}
    assert rates["sgd"] == list(GRID)
    assert rates["adam"] == pytest.approx([1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2])
    given = GdTuned().candidates(
        wrapped("gpt2"), TunedOptions.model_validate({"lr": 0.5, "loss": "label", "parameters": "kv"})
    )
    assert [(one["lr"], one["optimiser"]) for one in given] == [(0.5, "sgd"), (0.5, "adam")]


def test_weights_of_16_bits_learn_beside() -> None:
    found = GdTuned().candidates(wrapped("gpt2", torch.bfloat16), TunedOptions.model_validate({}))
    assert {one["parameters"] for one in found} == {"kv"}


@pytest.mark.parametrize(
    ("given", "best", "beyond"),
    [
        ({}, {"lr": RATES["adam"][0], "epochs": 3, "optimiser": "adam"}, True),
        ({}, {"lr": RATES["adam"][-1], "epochs": 3, "optimiser": "adam"}, True),
        ({}, {"lr": RATES["adam"][-1], "epochs": 3, "optimiser": "sgd"}, False),
        ({}, {"lr": GRID[-1], "epochs": 3, "optimiser": "sgd"}, True),
        ({}, {"lr": 1e-3, "epochs": EPOCHS[-1], "optimiser": "sgd"}, True),
        ({"lr": GRID[0]}, {"lr": GRID[0], "epochs": 1, "optimiser": "sgd"}, False),
        ({"epochs": 10}, {"lr": 1e-3, "epochs": 10, "optimiser": "sgd"}, False),
    ],
)
def test_at_the_edge(given: dict[str, float], best: dict[str, object], beyond: bool) -> None:
    """The choice itself, between candidates whose scores are made up: one of them is better than all others."""
    learner = GdTuned()
    options = TunedOptions.model_validate({"loss": "label", "parameters": "kv", **given})
    candidates = [dict(one) for one in learner.candidates(wrapped("gpt2"), options)]
    search = Search(learner.rounds(options), [0])
    while not search.is_over:
        found = {}
        for one in candidates:
            settings = search.rounds.settings_of(search.number, one)
            if search.candidates is None or canonical(one) in search.candidates:
                right = 2 * all(settings[key] == value for key, value in best.items())
                right += all(settings[key] == best[key] for key in ("lr", "optimiser"))
                found[canonical(dict(settings))] = Score(right, 3.0 - right, 3)
        search.take({0: found})
    choice = search.choice()
    assert {key: choice.settings[key] for key in best} == best
    assert choice.at_edge == beyond
