"""Stacked GPT-2 blocks are transformers' own model, seed by seed, and see nothing ahead of them."""

from typing import Any

import pytest
import torch

from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size, make_copy, pair_tokens
from dualscope.regression.problems.function_classes import generators
from dualscope.regression.problems.prompts import LinearFunctions, Prompts, draw_prompts
from dualscope.regression.prompt_training import summed_up_states_of

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
