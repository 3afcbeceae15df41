"""Gradient descent as attention: any shape and recipe, and torch's own optimizer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualscope.theory import Draw
from dualscope.theory.linear_layer import Recipe, attend, cross_entropy, descend, gd_is_attention, squared

rates = st.floats(0.0, 0.3)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 9),
    inputs=st.integers(1, 6),
    outputs=st.integers(1, 5),
    momentum=st.floats(0.0, 0.95),
    decay=rates,
    data=st.data(),
)
def test_any_shape_batching_and_recipe(
    seed: int, n: int, inputs: int, outputs: int, momentum: float, decay: float, data: st.DataObject
) -> None:
    batch = st.lists(st.integers(0, n - 1), min_size=1, max_size=4).map(tuple)
    batches = tuple(data.draw(st.lists(batch, max_size=8)))
    draw = Draw(seed)
    recipe = Recipe(batches, 0.05, momentum, decay)
    weight, x, query = draw.normal(outputs, inputs), draw.normal(n, inputs), draw.normal(2, 3, inputs)
    assert gd_is_attention(weight, x, draw.normal(n, outputs), query, squared, recipe).error < 1e-10
    labels = draw.classes(outputs, n)
    assert gd_is_attention(weight, x, labels, query, cross_entropy, recipe).error < 1e-10


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.2)])
def test_descend_is_torchs_sgd(momentum: float, decay: float) -> None:
    """With no momentum, torch's coupled weight decay is the decoupled one."""
    draw = Draw(0)
    x, y, start = draw.normal(8, 5), draw.normal(8, 3), draw.normal(3, 5)
    layer = torch.nn.Linear(5, 3, bias=False, dtype=torch.float64)
    layer.weight.data.copy_(start)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    recipe = Recipe.one_pass(8, 0.1, momentum, decay)
    for (i,) in recipe.batches:
        optimizer.zero_grad()
        squared(layer(x[i : i + 1]), y[i : i + 1]).backward()
        optimizer.step()
    torch.testing.assert_close(descend(start, x, y, squared, recipe), layer.weight.data)


def test_the_memory_is_one_pair_an_example_and_step() -> None:
    draw = Draw(0)
    memory = attend(draw.normal(3, 5), draw.normal(8, 5), draw.normal(8, 3), squared, Recipe.full(8, steps=6))
    assert memory.keys.shape == (48, 5)
    assert memory.values.shape == (48, 3)


def test_errors_of_the_first_step_alone_are_not_enough() -> None:
    """e_t must be taken at W_t: reusing the errors at W_0 breaks the identity from the second step on."""
    draw = Draw(0)
    weight, x, y, query = draw.normal(3, 5), draw.normal(8, 5), draw.normal(8, 3), draw.normal(5)
    once = attend(weight, x, y, squared, Recipe.full(8, steps=1))
    frozen = query @ weight.T + 2 * (query @ x.T) @ once.values
    two_steps = query @ descend(weight, x, y, squared, Recipe.full(8, steps=2)).T
    assert not torch.allclose(frozen, two_steps, rtol=1e-3)
