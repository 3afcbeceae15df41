"""Orthogonal steps, against the singular value decomposition and against Adam."""

import pytest
import torch

from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size
from dualscope.regression.spectral import Block, SpectralAdam, orthogonal


def test_orthogonal_is_nearly_the_polar_factor() -> None:
    for shape in ((2, 5, 8), (3, 8, 5)):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        found = orthogonal(matrices)
        u, _, vt = torch.linalg.svd(matrices, full_matrices=False)
        inside = u.mT @ found @ vt.mT  # diagonal, near 1
        off = inside - torch.diag_embed(inside.diagonal(dim1=-2, dim2=-1))
        assert off.abs().max() < 1e-4
        singular = torch.linalg.svdvals(found)
        assert singular.min() > 0.3
        assert singular.max() < 1.3


def test_matrices_are_found_where_they_lie() -> None:
    model = Gpt2Learner(3, 4, [0, 1], Size(2, 8, 2))
    weights = model.named()
    wanted = [
        part
        for layer in range(2)
        for part in (
            *weights[f"gpt2.h.{layer}.attn.c_attn.weight"].split(8, dim=-1),
            weights[f"gpt2.h.{layer}.attn.c_proj.weight"],
            weights[f"gpt2.h.{layer}.mlp.c_fc.weight"],
            weights[f"gpt2.h.{layer}.mlp.c_proj.weight"],
        )
    ]
    found = [block.view(model.flat) for block in model.matrices()]
    assert len(found) == len(wanted) == 12
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))


def test_what_is_no_matrix_takes_adams_step() -> None:
    flat = torch.nn.Parameter(torch.randn(2, 7, generator=torch.Generator().manual_seed(0)))
    other = torch.nn.Parameter(flat.detach().clone())
    mine = SpectralAdam(flat, [], 0.01, (0.9, 0.98))
    adam = torch.optim.Adam([other], lr=0.01, betas=(0.9, 0.98))
    for step in range(4):
        for parameter in (flat, other):
            parameter.grad = torch.sin(parameter.detach() * (step + 1))
        mine.step()
        adam.step()
    torch.testing.assert_close(flat, other)


def test_a_matrix_takes_the_orthogonal_factor_of_its_momentum() -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.nn.Parameter(torch.randn(2, 20, generator=generator))
    optimizer = SpectralAdam(flat, [Block(start=3, rows=2, columns=4, stride=4)], 0.01, (0.9, 0.98))
    momentum, expected = torch.zeros(2, 2, 4), flat.detach()[:, 3:11].view(2, 2, 4).clone()
    for _ in range(3):
        flat.grad = torch.randn(2, 20, generator=generator)
        slope = flat.grad[:, 3:11].view(2, 2, 4)
        momentum = 0.9 * momentum + 0.1 * slope
        ahead = 0.1 * slope + 0.9 * momentum  # Nesterov's
        expected -= 0.01 * 0.2 * 4**0.5 * orthogonal(ahead)
        optimizer.step()
    torch.testing.assert_close(flat.detach()[:, 3:11].view(2, 2, 4), expected)


def test_averaged_weights_are_a_mean_of_the_last_steps() -> None:
    flat = torch.nn.Parameter(torch.zeros(1, 3))
    optimizer = SpectralAdam(flat, [], 0.1, (0.9, 0.98), average=0.5)
    with optimizer.averaged():  # before the first step: the weights themselves
        assert torch.equal(flat, torch.zeros(1, 3))
    expected = torch.zeros(1, 3)
    for step in range(1, 9):
        flat.grad = torch.randn(1, 3, generator=torch.Generator().manual_seed(step))
        optimizer.step()
        own = flat.detach().clone()
        expected += (own - expected) / max(1, step / 2)
        with optimizer.averaged():
            torch.testing.assert_close(flat.detach(), expected)
        assert torch.equal(flat, own)  # training goes on from the weights, not from their mean
    with pytest.raises(KeyboardInterrupt), optimizer.averaged():
        raise KeyboardInterrupt
    assert torch.equal(flat, own)  # what is saved then are the weights, too
    optimizer.keep_average()
    torch.testing.assert_close(flat.detach(), expected)


def test_an_average_of_nothing_is_the_weights() -> None:
    flat = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = SpectralAdam(flat, [], 0.1, (0.9, 0.98))
    for _ in range(3):
        flat.grad = torch.ones(2, 2)
        optimizer.step()
        own = flat.detach().clone()
        with optimizer.averaged():
            assert torch.equal(flat, own)
