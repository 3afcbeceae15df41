"""Prompts for an autoregressive learner: x_1, y_1, x_2, y_2, ...; every prompt has its own function.

Targets have variance 1 in every class of functions and at every stage of a curriculum, so errors of different
classes and sizes can be read side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompts:
    """Many prompts at once; a leading dimension, where there is one, is the seeds'."""

    x: Tensor  # [..., tasks, points, d]
    y: Tensor  # [..., tasks, points], what the learner is shown
    target: Tensor  # [..., tasks, points], without noise

    def to(self, device: torch.device | str) -> "Prompts":
        return Prompts(self.x.to(device), self.y.to(device), self.target.to(device))


class FunctionClass(Protocol):
    """A distribution of functions and of inputs."""

    @property
    def d(self) -> int: ...

    def draw(self, tasks: int, points: int, generator: torch.Generator, dims: int | None = None) -> Prompts:
        """Inputs have ``dims`` coordinates that are not zero (all of them if not given)."""
        ...


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers, where the generator is."""
    return torch.randn(shape, generator=generator, device=generator.device)


def rotations(generator: torch.Generator, tasks: int, d: int) -> Tensor:
    """Orthogonal matrices, uniform over all of them: [tasks, d, d].

    A product of reflections in random directions of d, d - 1, ... dimensions (Stewart 1980): a few kernels for many
    matrices, where a batched QR is many.
    """
    units = torch.eye(d, device=generator.device)
    found = units.expand(tasks, d, d)
    axes = normal(generator, tasks, d, d).tril().mT  # column k has d - k entries, at its end
    signs = []
    for k in range(d):
        axis = axes[:, k]
        sign = torch.where(axis[:, k : k + 1] < 0, -1.0, 1.0)
        mirror = axis + sign * axis.norm(dim=-1, keepdim=True) * units[k]
        mirror = (mirror / mirror.norm(dim=-1, keepdim=True)).unsqueeze(-1)
        found = found - 2 * (found @ mirror) @ mirror.mT
        signs.append(-sign)
    return found * torch.cat(signs, -1).unsqueeze(-2)


def inputs(d: int, tasks: int, points: int, generator: torch.Generator, dims: int | None) -> Tensor:
    """x ~ N(0, I), of which the first ``dims`` coordinates are kept."""
    x = normal(generator, tasks, points, d)
    if dims is not None and dims < d:
        x[..., dims:] = 0
    return x


@dataclass(frozen=True)
class LinearFunctions:
    """y = w . x + noise, w ~ N(0, I / dims).

    ``condition`` > 1: half of the inputs' variances are ``condition`` times the other half, in a basis that is
    drawn anew for every prompt (Fu et al.); their mean is 1.

    >>> LinearFunctions(d=3).draw(7, 5, torch.Generator().manual_seed(0)).x.shape
    torch.Size([7, 5, 3])
    """

    d: int = 20
    noise: float = 0.0  # standard deviation, where targets have 1
    condition: float = 1.0

    def draw(self, tasks: int, points: int, generator: torch.Generator, dims: int | None = None) -> Prompts:
        kept = self.d if dims is None else min(dims, self.d)
        x = inputs(self.d, tasks, points, generator, kept)
        if self.condition != 1:
            x = torch.cat([x[..., :kept] @ self._root(tasks, kept, generator), x[..., kept:]], -1)
        weight = normal(generator, tasks, self.d, 1) * kept**-0.5
        target = (x @ weight).squeeze(-1)
        y = target + self.noise * normal(generator, *target.shape) if self.noise else target
        return Prompts(x, y, target)

    def _root(self, tasks: int, dims: int, generator: torch.Generator) -> Tensor:
        """A square root of the inputs' covariance, for every prompt: [tasks, dims, dims]."""
        variances = torch.ones(dims, device=generator.device)
        variances[: dims // 2] = self.condition
        basis = rotations(generator, tasks, dims)
        return (variances / variances.mean()).sqrt().unsqueeze(-1) * basis.mT


@dataclass(frozen=True)
class SparseLinear:
    """Linear functions of which ``nonzero`` weights, anywhere among the inputs in use, are not zero."""

    d: int = 20
    nonzero: int = 3

    def draw(self, tasks: int, points: int, generator: torch.Generator, dims: int | None = None) -> Prompts:
        kept = self.d if dims is None else min(dims, self.d)
        x = inputs(self.d, tasks, points, generator, kept)
        weight = normal(generator, tasks, self.d) * min(self.nonzero, kept) ** -0.5
        order = torch.rand((tasks, kept), generator=generator, device=generator.device).argsort(-1)
        mask = torch.zeros_like(weight).scatter(-1, order[:, : self.nonzero], 1.0)
        target = (x @ (weight * mask).unsqueeze(-1)).squeeze(-1)
        return Prompts(x, target, target)


@dataclass(frozen=True)
class DecisionTrees:
    """Full binary trees; every node asks for the sign of one input, every leaf has a value ~ N(0, 1)."""

    d: int = 20
    depth: int = 4

    def draw(self, tasks: int, points: int, generator: torch.Generator, dims: int | None = None) -> Prompts:
        kept = self.d if dims is None else min(dims, self.d)
        x = inputs(self.d, tasks, points, generator, kept)
        device = generator.device
        asked = torch.randint(kept, (tasks, 2**self.depth - 1), generator=generator, device=device)
        leaves = normal(generator, tasks, 2**self.depth)
        node = torch.zeros((tasks, points), dtype=torch.long, device=device)  # numbered level by level
        for _ in range(self.depth):
            coordinate = asked.gather(1, node)
            right = x.gather(-1, coordinate.unsqueeze(-1)).squeeze(-1) > 0
            node = 2 * node + 1 + right
        target = leaves.gather(1, node - (2**self.depth - 1))
        return Prompts(x, target, target)


@dataclass(frozen=True)
class TwoLayerNetworks:
    """y = a . relu(W x), with ``hidden`` units."""

    d: int = 20
    hidden: int = 100

    def draw(self, tasks: int, points: int, generator: torch.Generator, dims: int | None = None) -> Prompts:
        kept = self.d if dims is None else min(dims, self.d)
        x = inputs(self.d, tasks, points, generator, kept)
        first = normal(generator, tasks, self.d, self.hidden)
        second = normal(generator, tasks, self.hidden, 1)
        # E relu(w . x)^2 is half of |x|^2, whose mean is the number of inputs in use.
        target = (torch.relu(x @ first) @ second).squeeze(-1) * (2 / (self.hidden * kept)) ** 0.5
        return Prompts(x, target, target)


def draw_prompts(
    functions: FunctionClass, tasks: int, points: int, generators: Sequence[torch.Generator], dims: int | None = None
) -> Prompts:
    """One draw per seed, stacked, so that a seed's prompts do not depend on its neighbours."""
    return stacked([functions.draw(tasks, points, generator, dims) for generator in generators])


def stacked(draws: Sequence[Prompts]) -> Prompts:
    """Draws of several seeds as one: a leading dimension is theirs."""
    return Prompts(*(torch.stack(part) for part in zip(*((p.x, p.y, p.target) for p in draws), strict=True)))
