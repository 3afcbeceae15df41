"""Problems beyond a linear map: Gaussian processes, and sequences with their own linear dynamics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dualscope.regression.problems.function_classes import TaskBatch
from dualscope.regression.problems.prompts import rotations

Kernel = Literal["linear", "relu", "exp"]


def gram(kernel: Kernel, x: Tensor) -> Tensor:
    """Covariance of a Gaussian process at points on the unit sphere: [..., n, d] -> [..., n, n].

    relu<x, x'> is not positive definite; its eigenvalues are taken absolute.
    """
    products = x @ x.mT
    if kernel == "linear":
        return products
    if kernel == "exp":
        return torch.exp(products / 2)
    values, vectors = torch.linalg.eigh(torch.relu(products))
    found: Tensor = (vectors * values.abs().unsqueeze(-2)) @ vectors.mT
    return found


@dataclass(frozen=True)
class GaussianProcess:
    """y ~ GP(0, kernel), x uniform on the unit sphere (the setting of Cheng et al.)."""

    kernel: Kernel
    d: int = 5
    n: int = 14

    def draw(self, tasks: int, generator: torch.Generator) -> TaskBatch:
        return self.draw_with_gram(tasks, generator)[0]

    def draw_with_gram(self, tasks: int, generator: torch.Generator) -> tuple[TaskBatch, Tensor]:
        """Also the covariance of the n examples and the query, [tasks, n + 1, n + 1], which Bayes' answer
        needs.
        """
        x = torch.randn(tasks, self.n + 1, self.d, generator=generator)
        x = x / x.norm(dim=-1, keepdim=True)
        covariance = gram(self.kernel, x.double())
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
        white = torch.randn(tasks, self.n + 1, 1, generator=generator)
        y = (root @ white.double()).squeeze(-1).float()
        return TaskBatch(x[:, :-1], y[:, :-1], x[:, -1], y[:, -1]), covariance


def bayes(batch: TaskBatch, covariance: Tensor) -> Tensor:
    """The posterior mean k^T K^+ y at the query: [tasks]."""
    inner, cross = covariance[..., :-1, :-1], covariance[..., :-1, -1:]
    # A linear kernel on n > d points has no inverse; below this the spectrum is rounding.
    weights = torch.linalg.pinv(inner, hermitian=True, rtol=1e-10) @ batch.y.to(covariance).unsqueeze(-1)
    found: Tensor = (cross * weights).sum((-2, -1)).to(batch.y)
    return found


@dataclass(frozen=True)
class LinearDynamics:
    """Sequences s_{t+1} = W s_t + noise, each with its own random orthogonal W; s_0 ~ N(0, I).

    >>> LinearDynamics(d=3, length=6).draw(2, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 7, 3])
    """

    d: int = 10
    length: int = 50
    noise: float = 0.1

    def draw(self, tasks: int, generator: torch.Generator) -> Tensor:
        """[tasks, length + 1, d]: `length` transitions."""
        return self.draw_for(tasks, [generator])[0]

    def draw_for(self, tasks: int, generators: Sequence[torch.Generator]) -> Tensor:
        """[copies, tasks, length + 1, d]: one draw per generator, all of them continued together."""

        def normal(*shape: int) -> Tensor:
            return torch.stack([torch.randn(shape, generator=g, device=g.device) for g in generators])

        weight = torch.stack([rotations(g, tasks, self.d) for g in generators])
        states = [normal(tasks, self.d, 1)]
        noise = self.noise * normal(self.length, tasks, self.d, 1)
        for step in range(self.length):
            states.append(weight @ states[-1] + noise[:, step])
        return torch.stack(states, 2).squeeze(-1)
