"""Stacked GPT-2 blocks are transformers' own model, seed by seed, and see nothing ahead of them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from dualscope.regression.architectures import gpt2
from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size, causal, make_copy, pair_tokens
from dualscope.regression.problems import LinearFunctions, Prompts, draw_prompts, generators
from dualscope.regression.training import summed_up_states_of

SIZE = Size(layers=2, width=16, heads=2)


@pytest.mark.parametrize("attention", [None, {"name": "momentum", "eta": 0.5}])
def test_each_copy_is_transformers_own_model(attention: dict[str, Any] | None) -> None:
    prompts = draw_prompts(LinearFunctions(3), 4, 5, generators([0, 7]))
    with torch.no_grad():
        found = Gpt2Learner(3, 6, [0, 7], SIZE, attention)(prompts.x, prompts.y)
        for i, seed in enumerate((0, 7)):
            own = make_copy(seed, 3, 12, SIZE, attention, 1).eval()
            wanted = own(pair_tokens(prompts.x[i], prompts.y[i]))[:, ::2, 0]
            torch.testing.assert_close(found[i], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("d", "outputs"), [(3, 1), (5, 5)])
def test_every_copys_matrices_begin_where_a_gpu_reads(d: int, outputs: int) -> None:
    model = Gpt2Learner(d, 5, [0, 1, 2], SIZE, outputs=outputs)
    assert model.flat.shape[1] % 8 == 0  # bfloat16 is read 8 at a time
    assert all(block.start % 8 == 0 for block in model.matrices())
    kept = sum(value.numel() for value in model.named().values())
    assert 0 <= model.flat.numel() - kept < 3 * 16
    assert not model.flat[:, kept // 3 :].any()


def test_a_guess_depends_on_what_stands_before_it_alone() -> None:
    model = Gpt2Learner(3, 5, [0], SIZE)
    prompts = draw_prompts(LinearFunctions(3), 2, 5, generators([0]))
    with torch.no_grad():
        before = model(prompts.x, prompts.y)
        x, y = prompts.x.clone(), prompts.y.clone()
        y[..., 2] += 1  # the third answer, which the third guess may not see
        x[..., 3, :] += 1
        after = model(x, y)
    torch.testing.assert_close(after[..., :3], before[..., :3], rtol=0, atol=0)
    assert (after[..., 3:] != before[..., 3:]).all()


def test_a_summary_of_states_is_the_last_query_and_the_mean_of_answers_without_its_own() -> None:
    model = Gpt2Learner(3, 5, [0, 1], SIZE).requires_grad_(False)
    prompts = draw_prompts(LinearFunctions(3), 6, 5, generators([0, 1]))
    found = summed_up_states_of(model, prompts, at_once=4)
    states = model.hidden(pair_tokens(prompts.x, prompts.y), keep=True)
    for layer, state in zip(found, states, strict=True):
        answers = torch.stack([state[:, :, 2 * i + 1] for i in range(4)]).mean(0)
        torch.testing.assert_close(layer, torch.cat([state[:, :, 8], answers], -1))
    asked = Prompts(prompts.x, prompts.y.clone(), prompts.target)
    asked.y[..., -1] += 1
    for layer, other in zip(found, summed_up_states_of(model, asked, at_once=4), strict=True):
        torch.testing.assert_close(layer, other, rtol=0, atol=0)


def drawn(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3))
    return q, k, v


def written_out(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    logits = torch.einsum("...qd,...kd->...qk", query, key) * scale
    tokens = query.shape[-2]
    ahead = torch.arange(tokens)[:, None] < torch.arange(tokens)
    weights = logits.masked_fill(ahead, float("-inf")).exp()
    return torch.einsum("...qk,...kd->...qd", weights / weights.sum(-1, keepdim=True), value)


def gradients(output: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad((output * torch.arange(output.shape[-1])).sin().sum(), inputs)


def test_it_is_attention_as_it_is_written_forward_and_back() -> None:
    inputs = drawn(2, 3, 7, 8)
    mine, theirs = causal(*inputs, 0.3)[0], written_out(*inputs, 0.3)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(mine, inputs), gradients(theirs, inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dims", [(0, 0, 0), (0, 2, 1), (0, 0, None)])
def test_every_copy_is_as_if_it_were_alone(dims: tuple[int | None, ...]) -> None:
    inputs = drawn(4, 2, 3, 7, 8)
    given = [one[0] if dim is None else one.movedim(0, dim).contiguous() for one, dim in zip(inputs, dims, strict=True)]
    mine = vmap(lambda q, k, v: causal(q, k, v, 0.3)[0], in_dims=dims)(*given)
    alone = [one[:1].expand_as(one) if dim is None else one for one, dim in zip(inputs, dims, strict=True)]
    theirs = torch.stack([written_out(q, k, v, 0.3) for q, k, v in zip(*alone, strict=True)])
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(mine, inputs), gradients(theirs, inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_what_a_compiler_is_told_of_it_is_true() -> None:
    torch.library.opcheck(causal, (*(one.float().detach().requires_grad_() for one in drawn(2, 2, 5, 8)), 0.3))


def test_trainings_in_bfloat16_take_it_in_every_layer_and_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    own = gpt2._causal_backward

    def counted(*args: object) -> object:
        nonlocal calls
        calls += 1
        return own(*args)

    monkeypatch.setattr(gpt2, "_causal_backward", counted)
    model = Gpt2Learner(3, 6, [0, 1], Size(2, 16, 2))
    with torch.no_grad():
        for name, weights in model.named().items():
            weights *= 20 if ".c_attn." in name else 1  # so that tokens differ much in whom they look at
    prompts = draw_prompts(LinearFunctions(3), 8, 6, generators([0, 1]))

    def slope(half: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            guesses = model(prompts.x, prompts.y)
        (found,) = torch.autograd.grad((guesses - prompts.y).square().mean((1, 2)).sum(), [model.flat])
        return found

    exact = slope(False)
    assert calls == 0  # measured step by step
    fused = slope(True)
    assert calls == 2
    for queries_keys_values in model.matrices()[:3]:
        mine, theirs = (queries_keys_values.view(found).flatten(1) for found in (fused, exact))
        assert (torch.cosine_similarity(mine, theirs, dim=1) > 0.999).all()


@pytest.mark.parametrize(
    ("capability", "hip", "dim", "wanted"),
    [
        ((9, 0), None, 32, True),
        ((8, 0), None, 256, True),
        ((7, 5), None, 32, False),
        ((9, 0), None, 12, False),
        ((9, 0), None, 264, False),
        ((9, 4), "6.2", 32, False),
    ],
)
def test_a_gpu_without_the_kernel_does_without(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], hip: str | None, dim: int, wanted: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert gpt2.fusible(torch.device("cuda", 0), dim) is wanted
    assert gpt2.fusible(torch.device("cpu"), dim)
    assert not gpt2.fusible(torch.device("mps"), dim)


def test_where_there_is_no_kernel_attention_is_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = draw_prompts(LinearFunctions(3), 8, 6, generators([0, 1]))
    model = Gpt2Learner(3, 6, [0, 1], Size(2, 16, 2))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        fused = model(prompts.x, prompts.y)
        monkeypatch.setattr(gpt2, "fusible", lambda *_: False)
        monkeypatch.setattr(gpt2, "causal", None)
        plain = model(prompts.x, prompts.y)
    torch.testing.assert_close(fused, plain, rtol=0.05, atol=0.01)


def test_norms_stay_in_float32_and_projections_do_not() -> None:
    model = Gpt2Learner(3, 6, [0, 1], Size(1, 16, 2))
    with torch.autocast("cpu", torch.bfloat16):
        outside, block = model._grouped()
    assert {value.dtype for value in outside.values()} == {torch.float32}
    for name, value in block.items():
        assert value.dtype == (torch.float32 if name.startswith("ln_") else torch.bfloat16), name


@pytest.mark.slow
def test_a_compiled_block_has_the_same_gradient() -> None:
    prompts = draw_prompts(LinearFunctions(3), 8, 6, generators([0, 1]))
    found: list[Tensor] = []
    for compiled in (False, True):
        model = Gpt2Learner(3, 6, [0, 1], Size(2, 16, 2))
        if compiled:
            model.compile_blocks()
        with torch.autocast("cpu", torch.bfloat16):
            guesses = model(prompts.x, prompts.y)
        found += torch.autograd.grad((guesses - prompts.y).square().mean((1, 2)).sum(), [model.flat])
    assert (torch.cosine_similarity(found[0], found[1], dim=1) > 0.999).all()
