"""Variants: what is drawn anew, what is kept, and that nothing else moves."""

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.models import model_variants as variants
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
    for (name, drawn), (_, wanted) in zip(hf.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(drawn, wanted), name


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
