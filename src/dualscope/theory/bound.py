"""The generalisation bound of the dual model (after Ren & Liu, Theorem 3.2), with constants, evaluated on
data.

Over the data the risk is L(W) = -E[v . W phi(k)]. For every W with |W|_F <= w, with probability 1 - delta,

    L <= L_hat + (2 w rho / N) sqrt(Tr K_S) + 6 rho^2 sqrt(log(2 / delta) / (2 N)),

Tr K_S = sum_i exp(|k_i|^2), rho the largest |v| and |W phi(k)|. Everything is computed by the kernel trick.
The finite population stands for the distribution and samples are drawn from it with replacement, so L is
exact, not estimated.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log, sqrt

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.theory.features import exp_kernel, gram_features, slope
from dualscope.theory.identity import AtMost, Draw, TwoSides, identity
from dualscope.theory.softmax_dual import Head

REFERENCE = "after Ren & Liu, Theorem 3.2"


@dataclass(frozen=True)
class Population:
    """Keys [n, d] (scaled by d^(-1/4)) and values [n, d_v] of every token there is."""

    keys: Tensor
    values: Tensor

    @classmethod
    def draw(cls, draw: Draw, n: int = 512, d: int = 4) -> "Population":
        return cls(draw.normal(n, d) / 2, draw.normal(n, d) + 1)

    @classmethod
    def of(cls, head: Head) -> "Population":
        """The demonstrations of one head, whose scores are products of keys and query alone."""
        if head.bias is not None and float(head.bias.abs().max()) > 1e-6:
            raise InputError(
                "this head's scores have a part beside k . q (ALiBi, a softcap or a sink); the bound is stated for "
                "the kernel exp(k . k') alone"
            )
        return cls(head.keys[: head.demonstrations], head.values[: head.demonstrations])

    @cached_property
    def kernel(self) -> Tensor:
        """exp(k . k'), [n, n]."""
        return exp_kernel(self.keys, self.keys)

    @cached_property
    def gram(self) -> Tensor:
        """The inner products of the v phi(k)^T, (v . v') exp(k . k'): [n, n]."""
        return (self.values @ self.values.T) * self.kernel

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n token numbers, with replacement: [n]."""
        return torch.randint(len(self.keys), (n,), generator=generator)


@dataclass(frozen=True)
class Bound:
    """One evaluation: gap <= complexity + confidence, if the theorem holds (with probability 1 - delta)."""

    gap: Tensor  # L - L_hat
    complexity: Tensor  # (2 w rho / N) sqrt(Tr K_S)
    confidence: Tensor  # 6 rho^2 sqrt(log(2 / delta) / 2N)
    rho: Tensor
    radius: Tensor  # w

    @property
    def total(self) -> Tensor:
        return self.complexity + self.confidence


def dual_norm(keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
    """|W|_F of the dual solution with every token a demonstration: sqrt(sum_ij (v_i . v_j) K_ij) / D. Scalar."""
    normaliser = exp_kernel(keys, query.unsqueeze(0)).sum()
    return ((values @ values.T) * exp_kernel(keys, keys)).sum().clamp(min=0).sqrt() / normaliser


def worst_weight(population: Population, sample: Tensor, radius: Tensor) -> Tensor:
    """The W in the ball whose gap is largest, as coefficients [n] of W = sum_i c_i v_i phi(k_i)^T.

    The gap is <W, M>, M = mean over the sample - mean over the population of v phi^T; the maximiser is w M
    / |M|_F.
    """
    n = len(population.keys)
    counts = torch.bincount(sample, minlength=n).to(population.keys)
    m = counts / len(sample) - 1 / n
    return radius * m / (m @ population.gram @ m).sqrt()


def evaluate(
    population: Population, sample: Tensor, coefficients: Tensor, radius: Tensor, delta: float = 0.05
) -> Bound:
    """The gap of W = sum_i c_i v_i phi(k_i)^T on a sample, and the bound's terms. coefficients [n], sample
    [N].
    """
    kernel, values = population.kernel, population.values
    outputs = kernel @ (coefficients.unsqueeze(1) * values)  # W phi(k) of every token, [n, d_v]
    losses = -(values * outputs).sum(-1)
    rho = torch.maximum(values.norm(dim=-1).max(), outputs.norm(dim=-1).max())
    n = len(sample)
    complexity = 2 * radius * rho / n * kernel.diagonal()[sample].sum().sqrt()
    confidence = 6 * rho**2 * sqrt(log(2 / delta) / (2 * n))
    return Bound(losses.mean() - losses[sample].mean(), complexity, confidence, rho, radius)


@dataclass(frozen=True)
class Decay:
    """Gap and bound for every size and draw: gaps, bounds [sizes, draws]."""

    sizes: tuple[int, ...]
    gaps: Tensor
    bounds: Tensor

    @property
    def violations(self) -> int:
        return int((self.gaps > self.bounds).sum())

    @property
    def slope(self) -> Tensor:
        """Of the mean gap against N, log-log: -1/2 is the theory's."""
        return slope(torch.tensor(self.sizes), self.gaps.mean(1))


SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


def decay(draw: Draw, sizes: tuple[int, ...] = SIZES, draws: int = 30, delta: float = 0.05) -> Decay:
    """The worst-case gap over draws of each size, within the ball of the whole population's dual solution.

    >>> found = decay(Draw(0), sizes=(8, 32), draws=3)
    >>> found.violations, found.gaps.shape
    (0, torch.Size([2, 3]))
    """
    population = Population.draw(draw)
    query = draw.normal(population.keys.shape[-1]) / 2
    return _decay(population, query, draw.generator, sizes, draws, delta)


def head_decay(
    head: Head, draw: Draw, sizes: tuple[int, ...] = (8, 32, 128), draws: int = 10, delta: float = 0.05
) -> Decay:
    """The same with the demonstrations of a real head as the population, within the ball of the head's own dual.

    Keys are centred and as long as the query first, which softmax does not see: the bound has exp(|k|^2) in it, and of
    the many keys that make the same head these are among the shortest.
    """
    own = head.balanced()
    return _decay(Population.of(own), own.query, draw.generator, sizes, draws, delta)


def _decay(
    population: Population, query: Tensor, generator: torch.Generator, sizes: tuple[int, ...], draws: int, delta: float
) -> Decay:
    radius = dual_norm(population.keys, population.values, query)
    gaps, bounds = [], []
    for size in sizes:
        for _ in range(draws):
            sample = population.sample(size, generator)
            found = evaluate(population, sample, worst_weight(population, sample, radius), radius, delta)
            gaps.append(found.gap)
            bounds.append(found.total)
    shape = (len(sizes), draws)
    return Decay(sizes, torch.stack(gaps).reshape(shape), torch.stack(bounds).reshape(shape))


@identity(
    "bound-gap", "the kernel-trick gap of the worst W = w |mean_S − mean| of vφᵀ (Gram map)", REFERENCE, 1e-9, 1e-2
)
def _gap(draw: Draw) -> TwoSides:
    population = Population.draw(draw, n=40)
    sample, radius = population.sample(16, draw.generator), torch.tensor(0.7, dtype=draw.dtype)
    found = evaluate(population, sample, worst_weight(population, sample, radius), radius)
    features = gram_features(population.keys)(population.keys)
    products = torch.einsum("nd,nm->ndm", population.values, features)
    return TwoSides(found.gap, radius * (products[sample].mean(0) - products.mean(0)).norm())


@identity(
    "bound-holds", "gap ≤ bound for the worst W in the ball, 30 draws × 8 sizes", REFERENCE, 0.0, 0.0, "inequality"
)
def _holds(draw: Draw) -> TwoSides:
    found = decay(draw)
    return AtMost(found.gaps, found.bounds)


@identity(
    "bound-rate", "the worst gap falls as N^(−1/2), N = 8…1024 (slope −0.5 ± 0.1)", REFERENCE, 0.2, 0.2, "statistical"
)
def _rate(draw: Draw) -> TwoSides:
    return TwoSides(decay(draw).slope, torch.tensor(-0.5, dtype=torch.float64))


@identity(
    "bound-real-head",
    "gap ≤ bound for the demonstrations of 6 heads of the embedded model, one a layer",
    REFERENCE,
    0.0,
    0.0,
    "inequality",
)
def _real_head(draw: Draw) -> TwoSides:
    found = [head_decay(head, draw) for head in _embedded_heads(draw.seed)]
    return AtMost(torch.stack([one.gaps for one in found]), torch.stack([one.bounds for one in found]))


@lru_cache(maxsize=4)
def _embedded_heads(seed: int) -> tuple[Head, ...]:
    """One head of every layer, after 16 demonstrations; float64 whatever is asked, as `dual_of` always is."""
    from dualscope.models import Model
    from dualscope.tasks import Episode, Task
    from dualscope.theory.real_models import dual_of

    model = Model.load("embedded", device="cpu", dtype="float64")
    episode = Episode.draw(Task.load("embedded-sst2"), shots=16, seed=seed, queries=1)
    heads = range(model.n_layers)
    return tuple(dual_of(model, episode, layer, (seed + layer) % model.n_heads).head for layer in heads)
