"""Adam's direction: torch's own optimiser, and the formula of the paper."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from dualscope.descent.loop import Adam
from dualscope.descent.parameters import Gradient
from tests.learners.setting import tiny_bench


def drawn(step: int) -> Gradient:
    """The gradient of a fused matrix, [in, 3 x out], seen as its keys' and values' weights are; and of a bias."""
    generator = torch.Generator().manual_seed(step)
    fused = torch.randn(5, 12, dtype=torch.float64, generator=generator)
    bias = torch.randn(4, dtype=torch.float64, generator=generator)
    return {"key": fused.T[4:8], "value": 1e-6 * fused.T[8:], "bias": bias, "still": torch.zeros_like(bias)}


def test_adam_is_torchs() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    theirs, ours, own = torch.optim.Adam([weight], lr=0.1), Adam(), torch.ones(3, 2, dtype=torch.float64)
    for step in range(5):
        gradient = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        weight.grad = gradient.clone()
        theirs.step()
        direction = ours.direction({"w": gradient})["w"]
        assert isinstance(direction, Tensor)
        own = own - 0.1 * direction
    torch.testing.assert_close(own, weight.detach())


def test_adam_is_the_papers() -> None:
    adam, n = Adam(), 30
    mean = {name: torch.zeros_like(value) for name, value in drawn(0).items() if isinstance(value, Tensor)}
    square = {name: torch.zeros_like(value) for name, value in mean.items()}
    for step in range(1, n + 1):
        gradient = drawn(step)
        found = adam.direction(gradient)
        assert list(found) == list(gradient)
        for name, value in gradient.items():
            assert isinstance(value, Tensor)
            mean[name] = 0.9 * mean[name] + 0.1 * value
            square[name] = 0.999 * square[name] + 0.001 * value**2
            expected = (mean[name] / (1 - 0.9**step)) / ((square[name] / (1 - 0.999**step)).sqrt() + 1e-8)
            torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=0)
            torch.testing.assert_close(value, drawn(step)[name], rtol=0, atol=0)  # the gradient is left as it was


def test_a_run_that_is_repeated_begins_anew() -> None:
    adam, norms = Adam(), torch.zeros(1)
    first = [_copied(adam(drawn(step), step, norms).gradient) for step in range(3)]
    again = [_copied(adam(drawn(step), step, norms).gradient) for step in range(3)]
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def _copied(gradient: Gradient) -> list[Tensor]:
    return [value.clone() for value in gradient.values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in float32 a result can be trained again
def test_its_state_is_gone_when_a_run_is_over(dtype: torch.dtype) -> None:
    bench = tiny_bench("gpt2", dtype)
    settings: dict[str, Any] = {"lr": 0.01, "epochs": 1, "loss": "all", "parameters": "all", "optimiser": "adam"}
    learned = bench.learned("gd-tuned", **settings)
    bench.reread(learned)
    assert learned.delta is not None
    assert not [one for one in gc.get_objects() if isinstance(one, Adam) and one.mean]
