"""A matrix as two thin ones: all of it where its rank is low, and the nearest of a rank where it is cut."""

import pytest
import torch

from dualscope.baking.low_rank_factors import factored, product_factored
from dualscope.core.errors import InputError


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_change_of_low_rank_is_carried_whole_and_its_rank_found(shape: tuple[int, int], dtype: torch.dtype) -> None:
    change = (drawn(shape[0], 4) @ drawn(4, shape[1], seed=1)).to(dtype)
    factors = factored(change)
    assert factors.rank == 4
    torch.testing.assert_close((factors.up @ factors.down).to(dtype), change, rtol=1e-5, atol=1e-5)
    assert factors.lost < 1e-6


def test_a_change_of_full_rank_loses_nothing_either() -> None:
    change = drawn(12, 9)
    factors = factored(change)
    assert factors.rank == 9
    torch.testing.assert_close((factors.up @ factors.down).double(), change, rtol=1e-5, atol=1e-6)


def test_a_product_is_factored_without_being_made() -> None:
    left, right = drawn(40, 6), drawn(6, 50, seed=2)
    ours, plain = product_factored(left, right), factored(left @ right)
    assert ours.rank == plain.rank == 6
    torch.testing.assert_close(ours.up @ ours.down, plain.up @ plain.down, rtol=1e-5, atol=1e-5)
    assert ours.whole_square == pytest.approx(float((left @ right).square().sum()))


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_what_is_cut_is_the_least_there_is_and_its_share_is_said(rank: int) -> None:
    change = drawn(15, 10)
    cut = factored(change).cut_to(rank)
    u, s, vt = torch.linalg.svd(change)
    nearest = u[:, :rank] @ torch.diag(s[:rank]) @ vt[:rank]
    torch.testing.assert_close((cut.up @ cut.down).double(), nearest, rtol=1e-5, atol=1e-5)
    assert cut.lost == pytest.approx(float((change - nearest).norm() / change.norm()), rel=1e-5)


def test_a_change_of_nothing_has_factors_of_zeros() -> None:
    factors = factored(torch.zeros(3, 4))
    assert (factors.rank, factors.lost) == (1, 0.0)
    assert not (factors.up @ factors.down).any()


def test_a_rank_of_0_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1, found 0"):
        factored(drawn(3, 3)).cut_to(0)
