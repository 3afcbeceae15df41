"""Linear probes, against least squares of numpy's."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from dualscope.regression.probes import (
    PENALTY,
    PooledProbes,
    fit_probe,
    probed,
    read_by_networks,
    read_probe,
    whitening,
)


def test_without_a_penalty_a_probe_is_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 50, 4, generator=generator, dtype=torch.float64)
    wanted = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    found = read_probe(states, fit_probe(states, wanted, 0.0))
    for copy in range(2):
        inputs = np.column_stack([states[copy].numpy(), np.ones(50)])
        weights, *_ = np.linalg.lstsq(inputs, wanted[copy].numpy())
        np.testing.assert_allclose(found[copy].numpy(), inputs @ weights, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("penalty", "read"), [(PENALTY, True), (1e-3, False)])
def test_a_small_penalty_reads_what_hardly_varies(penalty: float, read: bool) -> None:
    states = torch.randn(1, 400, 5, generator=torch.Generator().manual_seed(0))
    wanted = states[..., :1].clone()
    states[..., 0] *= 0.005
    share = float(probed(states, wanted, penalty))
    assert share > 0.99 if read else share < 0.1


def test_a_probe_is_what_its_definition_says() -> None:
    generator = torch.Generator().manual_seed(1)
    fresh = torch.randn(2, 50, 3, 4, generator=generator, dtype=torch.float64)
    probes = PooledProbes(2, fresh, outputs=2).double()
    with torch.no_grad():
        for parameter in probes.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    states = torch.randn(2, 5, 3, 4, generator=generator, dtype=torch.float64)
    found = probes(states)
    for quantity, place in product(range(2), range(2)):
        one, exp = 2 * quantity + place, probes.position[quantity, place].exp()
        for row in range(5):
            pooled = torch.stack([exp[t] / exp.sum() * states[place, row, t] for t in range(3)]).sum(0)
            pooled = probes.turn[place] @ (pooled - fresh[place].mean((0, 1)))
            before = pooled @ probes.first[one] + probes.first_bias[one, 0]
            hidden = before * 0.5 * (1 + torch.erf(before / 2**0.5))
            wanted = hidden @ probes.second[one] + probes.second_bias[one, 0]
            torch.testing.assert_close(found[quantity, place, row], wanted)


def test_what_stands_at_one_token_nonlinearly_is_read_and_noise_is_not() -> None:
    def draw(number: int, rows: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        states = torch.randn(2, rows, 3, 4, generator=generator)
        # At the first place tokens know, each one thing, and no linear map gives it; at the second none does.
        square, size = states[0, :, 1, :2].square(), states[0, :, 2, :2].abs()
        states[1] = torch.randn(rows, 3, 4, generator=generator)
        return states, torch.stack([square.expand(2, -1, -1), size.expand(2, -1, -1)])

    (square, no_square), (size, no_size) = read_by_networks(draw, steps=400, judged=500).tolist()
    assert min(square, size) > 0.9
    assert max(abs(no_square), abs(no_size)) < 0.05


def test_prompts_that_a_probe_is_judged_on_are_none_of_those_it_was_fitted_to() -> None:
    numbers = []

    def draw(number: int, rows: int) -> tuple[Tensor, Tensor]:
        numbers.append((number, rows))
        generator = torch.Generator().manual_seed(number)
        return torch.randn(1, rows, 2, 2, generator=generator), torch.randn(1, 1, rows, 1, generator=generator)

    read_by_networks(draw, steps=20, judged=7)
    assert numbers == [(1, 16 * 128), (2, 4 * 128), (0, 7)]


def test_whitened_states_vary_alike_in_all_directions_and_a_dead_one_stays_dead() -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(5, 5, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 1, 1, 0.5, 0])
    states = torch.randn(1, 400, 3, 5, generator=generator, dtype=torch.float64) @ mixed.mT + 7
    middle, turn = whitening(states)
    found = torch.linalg.eigvalsh(((states - middle) @ turn).flatten(0, 2).T.cov())
    assert found[0] < 1e-12
    torch.testing.assert_close(found[1:], torch.ones(4, dtype=torch.float64), rtol=0.02, atol=0)


def test_what_hardly_varies_beside_the_rest_is_read() -> None:
    def draw(number: int, rows: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        states = torch.randn(1, rows, 2, 6, generator=generator)
        wanted = states[None, :, :, 1, :1].square()
        states[..., 0] *= 0.03
        return states + 5, wanted

    assert float(read_by_networks(draw, steps=300, judged=500)) > 0.9
