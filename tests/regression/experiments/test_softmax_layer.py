"""One softmax layer against plain loops, and its copies against each other."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.models.attention_kinds.kinds import Adapter
from dualscope.regression.experiments.softmax_layer import ARMS, LAST, OneSoftmaxLayer, SoftmaxLayer
from dualscope.regression.experiments.variants import NORMAL
from dualscope.regression.problems import Linear, draw_for, generators

D, N = 3, 5


def adapter(layer: SoftmaxLayer, role: str) -> Adapter:
    found = layer.augment[role]
    assert isinstance(found, Adapter)
    return found


def plainly(layer: SoftmaxLayer, copy: int, tokens: Tensor, options: dict[str, Any]) -> float:
    """Of one copy and one task, token by token."""

    def project(role: str, token: Tensor) -> Tensor:
        found: Tensor = getattr(layer, role)[copy] @ token
        if role in layer.augment:
            augment = adapter(layer, role)
            hidden = torch.relu(augment.first[copy] @ token)
            found = found + augment.c * augment.second[copy] @ hidden
        return found

    keys = [project("key", token) for token in tokens]
    values = [project("value", token) for token in tokens]
    query = layer.query[copy] @ tokens[-1]
    mixed_values = list(values)
    if options["name"] == "negative":
        for i, key in enumerate(keys):
            others = sorted((j for j in range(len(keys)) if j != i), key=lambda j: float(key @ keys[j]))
            least = [values[j] for j in others[: options["k"]]]
            mixed_values[i] = values[i] - options["beta"] * sum(least) / len(least)
    scores = [float(key @ query) / math.sqrt(len(query)) for key in keys]
    total = sum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    if options["name"] == "regularized":
        alpha = float(options["alpha"])
        weights[-1] = weights[-1] * (1 - alpha) if options.get("form") == "dual" else weights[-1] - alpha
    mixed = sum(weight * value for weight, value in zip(weights, mixed_values, strict=True))
    return float((layer.output[copy] @ mixed)[-1])


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_is_what_it_says(name: str) -> None:
    layer = SoftmaxLayer(D + 1, generators((3, 8)), ARMS[name]).double()
    for role in layer.augment:
        torch.nn.init.normal_(adapter(layer, role).second, generator=torch.Generator().manual_seed(4))  # it begins at 0
    batch = draw_for(Linear(D, N, inputs="normal"), 4, generators((3, 8), 1))
    with torch.no_grad():
        found = layer(batch.tokens.double())
    for copy in range(2):
        for task in range(4):
            with torch.no_grad():
                expected = plainly(layer, copy, batch.tokens[copy, task].double(), ARMS[name])
            assert found[copy, task].item() == pytest.approx(expected, abs=1e-12)


def test_a_copy_depends_on_its_own_seed_alone() -> None:
    few, many = (
        OneSoftmaxLayer.quick(seeds=seeds, arms=("augmented, g1 and g2, c = 1",)).run() for seeds in ((1,), (0, 1))
    )
    one, both = (results.values("augmented, g1 and g2, c = 1", LAST) for results in (few, many))
    assert one[1] == pytest.approx(both[1], rel=1e-5)


def test_normal_attention_learns_and_sweeps_are_drawn() -> None:
    arms = (NORMAL, "augmented, g1 and g2, c = 1", "augmented, g1 and g2, hidden width 4")
    results = OneSoftmaxLayer(seeds=(0, 1), steps=300, d=2, n=8, rate=1e-2, arms=arms).run()
    (check,) = results.checks
    assert check.holds
    by_width = {row["x"] for row in results.rows if row["metric"] == f"{LAST}, by hidden width"}
    assert by_width == {4, 16}
    assert {row["x"] for row in results.rows if row["metric"] == f"{LAST}, by c"} == {1.0}
