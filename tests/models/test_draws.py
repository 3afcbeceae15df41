"""Large tensors drawn piece by piece: the same numbers on any number of cores, distributed as torch's own."""

import os

import pytest
import torch

from dualscope.models.draws import LARGE, PIECE, PiecewiseDraws


def _draw(seed: int, size: int = LARGE, kind: str = "normal") -> list[torch.Tensor]:
    with torch.random.fork_rng(devices=[]), PiecewiseDraws():
        torch.manual_seed(seed)
        layers: list[torch.Tensor] = [torch.nn.Parameter(torch.empty(4, size // 4)) for _ in range(2)]
        for layer in layers:
            torch.nn.init.normal_(layer, 1, 2) if kind == "normal" else torch.nn.init.uniform_(layer, -1, 3)
    return layers


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_numbers_depend_on_the_seed_and_not_on_the_cores(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _draw(3, kind=kind)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    again = _draw(3, kind=kind)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, second)
    assert not torch.equal(first, _draw(4, kind=kind)[0])
    assert first.requires_grad


@pytest.mark.parametrize(("kind", "mean", "std"), [("normal", 1.0, 2.0), ("uniform", 1.0, 4 / 12**0.5)])
def test_pieces_are_of_the_distribution_and_independent(kind: str, mean: float, std: float) -> None:
    layer = _draw(5, LARGE + PIECE // 2, kind)[0].detach().flatten()
    pieces = layer[: LARGE // PIECE * PIECE].view(-1, PIECE)
    error = std / PIECE**0.5
    assert (pieces.mean(1) - mean).abs().max() < 5 * error
    assert (pieces.std(1) - std).abs().max() < 5 * error
    between = torch.corrcoef(pieces) - torch.eye(len(pieces))
    assert between.abs().max() < 5 / PIECE**0.5


def test_small_tensors_are_torchs_own() -> None:
    torch.manual_seed(3)
    expected = torch.empty(1000).normal_()
    torch.manual_seed(3)
    with PiecewiseDraws():
        assert torch.equal(torch.empty(1000).normal_(), expected)


def test_a_generator_of_the_callers_own_is_respected() -> None:
    with PiecewiseDraws():
        found = torch.empty(LARGE).normal_(generator=torch.Generator().manual_seed(1))
    assert torch.equal(found, torch.empty(LARGE).normal_(generator=torch.Generator().manual_seed(1)))
