"""Prompts unlike those of training: inputs, scales and queries that no training showed (Garg et al.)."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dualscope.regression.problems.prompts import LinearFunctions, Prompts, normal, rotations

Shift = Callable[[LinearFunctions, int, int, torch.Generator], Prompts]
"""functions, tasks, number of examples, generator -> prompts of one point more, whose last is the query."""


def none(functions: LinearFunctions, tasks: int, examples: int, generator: torch.Generator) -> Prompts:
    return functions.draw(tasks, examples + 1, generator)


def _changed(change: Callable[[Tensor, torch.Generator], Tensor]) -> Shift:
    """Other inputs for the same functions; the target is of the changed inputs."""

    def shift(functions: LinearFunctions, tasks: int, examples: int, generator: torch.Generator) -> Prompts:
        x = change(normal(generator, tasks, examples + 1, functions.d), generator)
        weight = normal(generator, tasks, functions.d, 1) * functions.d**-0.5
        target = (x @ weight).squeeze(-1)
        return Prompts(x, target, target)

    return shift


def _skewed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Variances fall as 1/i^2 along random axes; their mean stays 1."""
    d = x.shape[-1]
    variances = torch.arange(1, d + 1, device=x.device, dtype=x.dtype) ** -2.0
    basis = rotations(generator, len(x), d)
    return (x * (variances / variances.mean()).sqrt()) @ basis.mT


def _half_space(x: Tensor, generator: torch.Generator) -> Tensor:
    """All inputs in a random subspace of half the dimensions, as long as they would have been."""
    d = x.shape[-1]
    basis = rotations(generator, len(x), d)
    kept = basis[..., : d // 2]
    return (x @ kept @ kept.mT) * 2**0.5


def _other_orthant(x: Tensor, generator: torch.Generator) -> Tensor:
    """Examples in one random orthant, the query anywhere."""
    signs = normal(generator, len(x), 1, x.shape[-1]).sign()
    return torch.cat([x[:, :-1].abs() * signs, x[:, -1:]], 1)


def _outside_span(x: Tensor, _generator: torch.Generator) -> Tensor:
    """A query of the same length, orthogonal to every example (where there are fewer than d)."""
    examples, query = x[:, :-1], x[:, -1:]
    if not examples.shape[1]:
        return x
    basis, _ = torch.linalg.qr(examples.mT)
    off = query - query @ basis @ basis.mT
    return torch.cat(
        [examples, off * query.norm(dim=-1, keepdim=True) / off.norm(dim=-1, keepdim=True).clamp(min=1e-6)], 1
    )


def _repeated(x: Tensor, generator: torch.Generator) -> Tensor:
    """The query is one of the examples."""
    if x.shape[1] < 2:
        return x
    which = torch.randint(x.shape[1] - 1, (len(x), 1, 1), generator=generator, device=x.device)
    return torch.cat([x[:, :-1], x.gather(1, which.expand(-1, 1, x.shape[-1]))], 1)


def _noisy(functions: LinearFunctions, tasks: int, examples: int, generator: torch.Generator) -> Prompts:
    return replace(functions, noise=functions.noise + 0.25).draw(tasks, examples + 1, generator)


UNSHIFTED = "none"
SHIFTS: dict[str, Shift] = {
    UNSHIFTED: none,
    "skewed inputs": _changed(_skewed),
    "inputs in half of the dimensions": _changed(_half_space),
    "inputs x 1/3": _changed(lambda x, _: x / 3),
    "inputs x 3": _changed(lambda x, _: x * 3),
    "query in another orthant": _changed(_other_orthant),
    "query outside the span": _changed(_outside_span),
    "query is an example": _changed(_repeated),
    "noise 0.25": _noisy,
}
FEWER_THAN_D = ("query outside the span",)  # makes sense only with fewer examples than dimensions
