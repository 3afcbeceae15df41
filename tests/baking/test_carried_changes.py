"""What a learner changed, layer by layer, whatever the architecture keeps where; and what LoRA cannot carry."""

import pytest
import torch
from torch import nn

from dualscope.baking.carried_changes import carried, factored, product_factored
from dualscope.core.errors import InputError
from dualscope.learners import Bench
from tests.learners.setting import tiny_bench, tiny_lesson, wrapped
from tests.models.tiny import CONFIGS

FUSED = ("gpt2", "gpt_neox", "phi3", "codegen", "falcon", "gpt_bigcode", "deepseek_v3")
APART = ("llama", "opt", "xglm", "gpt_neo")


@pytest.mark.parametrize("family", [*FUSED, *APART])
def test_all_of_a_change_of_keys_and_values_is_carried(family: str) -> None:
    """A fused matrix whole, zero outside of keys and values; grouped heads; transposed weights; biases."""
    assert family in CONFIGS
    bench = tiny_bench(family)
    delta = bench.learned("gd", 0.5).delta
    assert delta is not None
    layers = carried(bench.model, delta)
    seen = 0
    for parameter, change in delta.in_full(bench.model).items():
        layer, _, kind = parameter.rpartition(".")
        module, found = bench.model.hf.get_submodule(layer), layers[layer]
        if kind == "bias":
            assert found.bias is not None
            torch.testing.assert_close(found.bias.double(), change, rtol=1e-6, atol=1e-7)
        else:
            matrix = change if isinstance(module, nn.Linear) else change.T
            torch.testing.assert_close(
                (found.factors.up @ found.factors.down).double(), matrix, rtol=1e-4, atol=1e-6 * float(matrix.norm())
            )
        seen += 1
    assert seen >= len(layers) >= bench.model.n_layers


def test_layers_that_do_not_change_are_left_out() -> None:
    bench = tiny_bench("llama")
    layers = carried(bench.model, bench.learned("gd", 0.5, layers=(1,), parameters="v").change)
    assert list(layers) == ["model.layers.1.self_attn.v_proj"]


def test_what_changes_no_weights_is_refused() -> None:
    bench = tiny_bench("gpt2")
    with pytest.raises(InputError, match=r"by a Steering, and LoRA carries .* take kv-distilled"):
        carried(bench.model, bench.learned("task-vector", layer=1, dummies=2).change)
    with pytest.raises(InputError, match="this learner changes nothing"):
        carried(bench.model, bench.learned("in-context").change)


def test_embeddings_and_norms_are_refused() -> None:
    bench = tiny_bench("gpt2")
    with pytest.raises(InputError, match=r"changes 'transformer.wte', a Embedding outside the blocks.*parameters=kv"):
        carried(bench.model, bench.learned("gd-all", 0.1).change)


def test_a_patch_of_one_token_is_refused() -> None:
    bench = tiny_bench("llama")
    with pytest.raises(InputError, match="acts on one token of a query"):
        carried(bench.model, bench.learned("static-patch", fit=6).change)


def test_a_mixture_of_experts_is_refused_where_its_experts_would_change() -> None:
    model = wrapped("deepseek_v3", first_k_dense_replace=0)
    bench = Bench(model, tiny_lesson(model))
    with pytest.raises(InputError, match="mixture of experts"):
        bench.learned("static-patch", fit=6, every_token=True)
    dense = tiny_bench("deepseek_v3")  # all of its layers are, and peft looks at the name
    with pytest.raises(InputError, match=r"mixture of experts: .* take kv-distilled"):
        carried(dense.model, dense.learned("static-patch", fit=6, every_token=True).change)
    assert carried(model, bench.learned("gd", 0.5).change)


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
