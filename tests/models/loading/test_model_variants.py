"""Variants: what is drawn anew, what is kept, and that nothing else moves."""

import os
import threading
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.models.loading import model_variants as variants
from dualscope.models.loading.model_variants import LARGE, PIECE, Draws, PiecewiseDraws, Weights, drawn
from tests.models.tiny import FAMILIES, tiny_model


def _is_norm_or_outside(name: str, family: str) -> bool:
    """By the architectures' own names (the code under test goes by structure)."""
    inside = any(word in name for word in (".h.", ".layers.", ".blocks."))
    norm = any(word in name for word in ("norm", "ln_1", "ln_2", "ln_attn", "ln_mlp"))
    return not inside or norm


def _copy(hf: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in hf.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_untrained_is_the_architectures_own_initialiser(family: str) -> None:
    hf, _ = tiny_model(family, seed=1)
    variants.apply(hf, "untrained", init_seed=7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = type(hf)(hf.config)
    for (name, found), (_, wanted) in zip(hf.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(found, wanted), name


@pytest.mark.parametrize("family", FAMILIES)
def test_trained_embeddings_keeps_embeddings_and_norms_only(family: str) -> None:
    hf, _ = tiny_model(family, seed=1)
    before = _copy(hf)
    tied = hf.get_output_embeddings().weight is hf.get_input_embeddings().weight
    variants.apply(hf, "trained-embeddings", init_seed=7)
    for name, parameter in hf.named_parameters():
        assert torch.equal(parameter, before[name]) == _is_norm_or_outside(name, family), name
    assert (hf.get_output_embeddings().weight is hf.get_input_embeddings().weight) == tied


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "phi3", "bloom"])
def test_shuffled_permutes_each_matrix_within_itself(family: str) -> None:
    hf, _ = tiny_model(family, seed=1)
    before = _copy(hf)
    variants.apply(hf, "shuffled", init_seed=7)
    for name, parameter in hf.named_parameters():
        same = torch.equal(parameter, before[name])
        assert same == (parameter.ndim == 1), name
        assert torch.equal(parameter.flatten().sort().values, before[name].flatten().sort().values), name


@pytest.mark.parametrize("variant", ["untrained", "trained-embeddings", "shuffled"])
def test_a_seed_is_a_draw_whatever_the_precision_and_the_ambient_state(variant: str) -> None:
    torch.manual_seed(1)
    narrow, _ = tiny_model("gpt2")
    variants.apply(narrow, variant, init_seed=3)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    wide, _ = tiny_model("gpt2", torch.float64)
    variants.apply(wide, variant, init_seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    other, _ = tiny_model("gpt2")
    variants.apply(other, variant, init_seed=4)
    pairs = list(zip(narrow.parameters(), wide.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a.double(), b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert narrow.lm_head.weight is narrow.transformer.wte.weight


def test_applied_twice_the_second_seed_counts() -> None:
    once, _ = tiny_model("llama")
    variants.apply(once, "untrained", init_seed=4)
    twice, _ = tiny_model("llama")
    variants.apply(twice, "untrained", init_seed=3)
    variants.apply(twice, "untrained", init_seed=4)
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))


def test_trained_changes_nothing_and_unknown_names_are_refused() -> None:
    hf, _ = tiny_model("gpt2")
    before = _copy(hf)
    variants.apply(hf, "trained", init_seed=7)
    assert all(torch.equal(parameter, before[name]) for name, parameter in hf.named_parameters())
    with pytest.raises(InputError, match="did you mean shuffled"):
        variants.apply(hf, "shufled")


def _draw(seed: int, size: int = LARGE, kind: str = "normal") -> list[torch.Tensor]:
    with PiecewiseDraws(seed):
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = [torch.empty(1000).normal_(), torch.randn(7), torch.randperm(9), torch.rand(3)]
    before = torch.get_rng_state()
    with PiecewiseDraws(3):
        found = [torch.empty(1000).normal_(), torch.randn(7), torch.randperm(9), torch.rand(3)]
    assert all(torch.equal(own, other) for own, other in zip(found, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_of_the_callers_own_is_respected() -> None:
    with PiecewiseDraws(0):
        found = torch.empty(LARGE).normal_(generator=torch.Generator().manual_seed(1))
    assert torch.equal(found, torch.empty(LARGE).normal_(generator=torch.Generator().manual_seed(1)))


class Counting(Draws):
    """Draws that count how often they were made, and where."""

    def __init__(self) -> None:
        self.threads: list[bool] = []
        super().__init__(self._counted)

    def _counted(self, hf: Any, seed: int) -> Weights:
        self.threads.append(threading.current_thread() is not threading.main_thread())
        return drawn(hf, seed)


def variant_of(variant: str, seed: int, draws: Draws | None = None) -> list[torch.Tensor]:
    hf, _ = tiny_model("gpt2", seed=1)
    variants.apply(hf, variant, seed, draws)
    return list(hf.parameters())


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_variants_of_a_seed_share_one_draw() -> None:
    draws = Counting()
    for seed in (3, 4):
        for variant in variants.DRAWN:
            assert same(variant_of(variant, seed, draws), variant_of(variant, seed))
    assert draws.threads == [False, False]


def test_a_draw_that_was_made_ahead_is_the_same_and_leaves_torchs_state_alone() -> None:
    hf, _ = tiny_model("gpt2", seed=1)
    draws = Counting()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = torch.rand(2000)
        torch.manual_seed(0)
        draws.prepare(hf, 3)
        assert torch.equal(torch.cat([torch.rand(1) for _ in range(2000)]), expected)
    assert same(variant_of("untrained", 3, draws), variant_of("untrained", 3))
    assert same(variant_of("trained-embeddings", 3, draws), variant_of("trained-embeddings", 3))
    assert draws.threads == [True]


def test_another_seed_is_drawn_anew_and_an_error_is_told() -> None:
    hf, _ = tiny_model("gpt2", seed=1)

    def broken(_hf: Any, _seed: int) -> Weights:
        raise MemoryError("no room")

    draws = Counting()
    draws.prepare(hf, 3)
    assert same(variant_of("untrained", 4, draws), variant_of("untrained", 4))
    assert draws.threads == [True, False]
    failing = Draws(broken)
    failing.prepare(hf, 3)
    failing.settle()
    with pytest.raises(MemoryError, match="no room"):
        failing.of(hf, 3)
