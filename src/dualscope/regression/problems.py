"""In-context regression problems: each task has its own function, shown by n examples and asked at one query."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


# Prompts for an autoregressive learner: x_1, y_1, x_2, y_2, ...; every prompt has its own function.
#
# Targets have variance 1 in every class of functions and at every stage of a curriculum, so errors of different
# classes and sizes can be read side by side.


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


# Problems beyond a linear map: Gaussian processes, and sequences with their own linear dynamics.


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


# Prompts unlike those of training: inputs, scales and queries that no training showed (Garg et al.).


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
