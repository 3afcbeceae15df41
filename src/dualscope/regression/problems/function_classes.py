"""In-context regression problems: each task has its own function, shown by n examples and asked at one query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

STEPS = 2_000_003  # more than a training has; a prime


@dataclass(frozen=True)
class TaskBatch:
    """Many tasks at once; a leading dimension, where there is one, is the seeds'."""

    x: Tensor  # [..., tasks, n, d]
    y: Tensor  # [..., tasks, n]
    query: Tensor  # [..., tasks, d]
    target: Tensor  # [..., tasks], without noise

    def to(self, device: torch.device | str) -> "TaskBatch":
        return TaskBatch(*(part.to(device) for part in (self.x, self.y, self.query, self.target)))

    @property
    def tokens(self) -> Tensor:
        """(x_i, y_i), then the query as (x, 0): [..., tasks, n + 1, d + 1]."""
        inputs = torch.cat([self.x, self.query.unsqueeze(-2)], -2)
        outputs = torch.cat([self.y, torch.zeros_like(self.y[..., :1])], -1)
        return torch.cat([inputs, outputs.unsqueeze(-1)], -1)


class Problem(Protocol):
    """A distribution of tasks."""

    def draw(self, tasks: int, generator: torch.Generator) -> TaskBatch: ...


@dataclass(frozen=True)
class Linear:
    """y = w . x + noise, w ~ N(0, I); x uniform on (-1/2, 1/2), or N(0, diag(scales)).

    >>> batch = Linear(d=3, n=5).draw(7, torch.Generator().manual_seed(0))
    >>> batch.tokens.shape
    torch.Size([7, 6, 4])
    """

    d: int = 10
    n: int = 10
    noise: float = 0.0  # standard deviation
    inputs: Literal["uniform", "normal"] = "uniform"
    scales: tuple[float, ...] | None = None  # variances of normal inputs

    def draw(self, tasks: int, generator: torch.Generator) -> TaskBatch:
        shape = (tasks, self.n + 1, self.d)
        if self.inputs == "uniform":
            x = torch.rand(shape, generator=generator, device=generator.device) - 0.5
        else:
            x = torch.randn(shape, generator=generator, device=generator.device)
            if self.scales is not None:
                x = x * torch.tensor(self.scales, device=generator.device).sqrt()
        weight = torch.randn(tasks, self.d, 1, generator=generator, device=generator.device)
        exact = (x @ weight).squeeze(-1)
        y = exact[:, :-1]
        if self.noise:
            y = y + self.noise * torch.randn(y.shape, generator=generator, device=generator.device)
        return TaskBatch(x[:, :-1], y, x[:, -1], exact[:, -1])


def draw_for(problem: Problem, tasks: int, generators: Sequence[torch.Generator]) -> TaskBatch:
    """One draw per seed, stacked, so that a seed's tasks do not depend on its neighbours."""
    draws = [problem.draw(tasks, generator) for generator in generators]
    return TaskBatch(*(torch.stack(part) for part in zip(*((b.x, b.y, b.query, b.target) for b in draws), strict=True)))


def generators(
    seeds: Sequence[int], stream: int = 0, device: torch.device | str = "cpu", step: int = 0
) -> list[torch.Generator]:
    """One generator per seed; streams (training, test, weights) and steps do not overlap."""
    numbers = [((seed * 1000 + stream) * STEPS + step) % 2**63 for seed in seeds]
    return [torch.Generator(device=device).manual_seed(number) for number in numbers]
