"""Problems: shapes, seeds, and the distributions they claim."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch

from dualscope.regression.problems import (
    DecisionTrees,
    FunctionClass,
    GaussianProcess,
    Linear,
    LinearDynamics,
    LinearFunctions,
    SparseLinear,
    TwoLayerNetworks,
    bayes,
    draw_for,
    generators,
    gram,
)
from dualscope.theory import functional


def one(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_linear_task_is_linear() -> None:
    batch = Linear(d=3, n=8).draw(5, one())
    weights = torch.linalg.lstsq(batch.x, batch.y.unsqueeze(-1)).solution.squeeze(-1)
    torch.testing.assert_close((weights * batch.query).sum(-1), batch.target, rtol=1e-3, atol=1e-4)
    assert batch.tokens.shape == (5, 9, 4)
    assert (batch.tokens[:, -1, -1] == 0).all()
    assert batch.x.abs().max() <= 0.5


@pytest.mark.parametrize("dims", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", [LinearFunctions, SparseLinear, DecisionTrees, TwoLayerNetworks])
def test_targets_have_variance_one_at_every_stage_of_a_curriculum(
    kind: Callable[..., FunctionClass], dims: int
) -> None:
    prompts = kind(8).draw(20_000, 2, one(), dims)
    assert float(prompts.target.square().mean()) == pytest.approx(1, abs=0.08)
    assert int((prompts.x[0, 0] != 0).sum()) == dims


def test_noise_and_scales_have_the_size_they_say() -> None:
    batch = Linear(d=2, n=3, noise=0.5, inputs="normal", scales=(4.0, 0.25)).draw(20_000, one())
    torch.testing.assert_close(batch.x.flatten(0, 1).var(0), torch.tensor([4.0, 0.25]), rtol=0.05, atol=0)
    torch.testing.assert_close(batch.y.var(), torch.tensor(4.0 + 0.25 + 0.25), rtol=0.05, atol=0)


def test_a_seed_draws_the_same_whoever_is_beside_it() -> None:
    problem = Linear(d=3, n=4)
    together, alone = draw_for(problem, 6, generators([4, 7])), draw_for(problem, 6, generators([7]))
    assert torch.equal(together.tokens[1], alone.tokens[0])
    assert not torch.equal(together.tokens[0], together.tokens[1])
    assert not torch.equal(alone.tokens, draw_for(problem, 6, generators([7], stream=1)).tokens)


def test_bayes_is_the_theorys_where_that_has_one() -> None:
    scales: dict[Literal["linear", "exp"], float] = {"linear": 1.0, "exp": 0.5}
    for kernel, scale in scales.items():
        batch, covariance = GaussianProcess(kernel, n=4).draw_with_gram(3, one())
        for task in range(3):
            x, y, query = (part[task].double() for part in (batch.x, batch.y, batch.query))
            theirs = functional.bayes(x, y, query[None], kernel, scale)[0]
            torch.testing.assert_close(bayes(batch, covariance)[task].double(), theirs, rtol=1e-3, atol=1e-4)


def test_the_relu_kernel_is_made_positive() -> None:
    points = torch.randn(6, 9, 5, generator=one(), dtype=torch.float64)
    assert torch.linalg.eigvalsh(gram("relu", points)).min() > -1e-10


def test_dynamics_turn_without_growing() -> None:
    states = LinearDynamics(d=4, length=9, noise=0.0).draw(3, one())
    lengths = states.norm(dim=-1)
    torch.testing.assert_close(lengths, lengths[:, :1].expand_as(lengths), rtol=1e-4, atol=1e-4)
    weight = torch.linalg.lstsq(states[:, :-1], states[:, 1:]).solution
    torch.testing.assert_close(states[:, :-1] @ weight, states[:, 1:], rtol=1e-3, atol=1e-3)
