"""What gradient descent at its best is chosen from, and when the best may lie beyond that."""

import pytest
import torch

from dualscope.core.halving import GRID
from dualscope.learners.gradient import tuned
from dualscope.learners.gradient.tuned import EPOCHS, RATES, GdTuned, TunedOptions, candidates
from tests.learners.setting import tiny_bench, wrapped


def test_candidates_are_all_that_is_open() -> None:
    found = candidates(wrapped("gpt2"), TunedOptions.model_validate({}))
    assert len(found) == len({tuple(sorted(one.items())) for one in found}) == 4 * (len(GRID) + 7)
    rates = {which: sorted({one["lr"] for one in found if one["optimiser"] == which}) for which in RATES}
    assert rates["sgd"] == list(GRID)
    assert rates["adam"] == pytest.approx([1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2])
    given = candidates(wrapped("gpt2"), TunedOptions.model_validate({"lr": 0.5, "loss": "label", "parameters": "kv"}))
    assert [(one["lr"], one["optimiser"]) for one in given] == [(0.5, "sgd"), (0.5, "adam")]


def test_weights_of_16_bits_learn_beside() -> None:
    found = candidates(wrapped("gpt2", torch.bfloat16), TunedOptions.model_validate({}))
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
def test_at_the_edge(
    given: dict[str, float], best: dict[str, object], beyond: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice itself, between candidates whose figures are made up: one of them is better than all others."""

    def scored(_bench: object, _trace: object, candidate: dict[str, object]) -> dict[str, object]:
        good = bool(candidate) and all(candidate[key] == value for key, value in best.items())
        right = float(
            good or (bool(candidate) and 0.5 * all(candidate[key] == best[key] for key in ("lr", "optimiser")))
        )
        return {**candidate, "seed": 0, "accuracy": right, "nll": 1.0 - right, "n": 1}

    monkeypatch.setattr(tuned, "_scored", scored)
    monkeypatch.setattr(GdTuned, "_try", lambda _self, bench, _options, candidate: scored(bench, None, candidate))
    monkeypatch.setattr(tuned, "judges", lambda bench, _materials: [bench])
    options = TunedOptions.model_validate({"loss": "label", "parameters": "kv", **given})
    choice = GdTuned().choose([tiny_bench("gpt2")], options)
    assert {key: choice.settings[key] for key in best} == best
    assert choice.at_edge == beyond
