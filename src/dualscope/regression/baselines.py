"""What in-context learners are compared with: estimators at every length of a prompt.

Least squares and its relatives come from one eigendecomposition each. With k examples, S = sum x_i x_i^T = U diag(s)
U^T and b = sum x_i y_i. Least squares, ridge, gradient descent and Newton's iteration all have weights U f(s) U^T b;
only the filter f differs.

The end of the file measures how alike two learners are: what they predict, and how that depends on the query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dualscope.regression.problems import Prompts, TaskBatch, generators, normal

Filter = Callable[[Tensor], Tensor]  # eigenvalues [..., d] -> [..., d]
RANK = 1e-10  # eigenvalues below this share of the largest are rounding


@dataclass(frozen=True)
class Spectrum:
    """Of prompts [...]: for every k from 0 to points - 1, what the first k examples say. Float64."""

    values: Tensor  # [..., points, d]
    vectors: Tensor  # [..., points, d, d]
    moments: Tensor  # [..., points, d]: b
    x: Tensor  # [..., points, d]: the inputs that are asked about

    @classmethod
    def of_last(cls, x: Tensor, y: Tensor) -> "Spectrum":
        """Of the last point alone, from all examples before it: points is 1."""
        x, y = x.detach().cpu().double(), y.detach().cpu().double()
        shown, answers = x[..., :-1, :], y[..., :-1, None]
        values, vectors = torch.linalg.eigh(shown.mT @ shown)
        moments = (shown.mT @ answers).squeeze(-1)
        return cls(values.clamp(min=0).unsqueeze(-2), vectors.unsqueeze(-3), moments.unsqueeze(-2), x[..., -1:, :])

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Spectrum":
        """x [..., points, d], y [..., points]; on the CPU, whose eigensolver is the better for many small ones."""
        x, y = x.detach().cpu().double(), y.detach().cpu().double()
        outer = (x.unsqueeze(-1) * x.unsqueeze(-2)).cumsum(-3)
        inner = torch.cat([torch.zeros_like(outer[..., :1, :, :]), outer[..., :-1, :, :]], -3)
        sums = (x * y.unsqueeze(-1)).cumsum(-2)
        moments = torch.cat([torch.zeros_like(sums[..., :1, :]), sums[..., :-1, :]], -2)
        values, vectors = torch.linalg.eigh(inner)
        return cls(values.clamp(min=0), vectors, moments, x)

    def weights(self, kept: Filter) -> Tensor:
        """[..., points, d]: those learned from the first k examples."""
        turned = (self.vectors.mT @ self.moments.unsqueeze(-1)).squeeze(-1)
        found = kept(self.values) * turned
        return (self.vectors @ found.unsqueeze(-1)).squeeze(-1)

    def predict(self, kept: Filter) -> Tensor:
        """[..., points]: the guess for each input from the examples before it."""
        return (self.weights(kept) * self.x).sum(-1)


def _largest(values: Tensor) -> Tensor:
    return values.amax(-1, keepdim=True).clamp(min=1e-300)


def _inverse(values: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """``share`` / s where the examples say anything, and 0 elsewhere: weights of least norm."""
    return torch.where(values > RANK * _largest(values), share / values.clamp(min=1e-300), 0.0)


def least_squares(values: Tensor) -> Tensor:
    """X^+ y."""
    return _inverse(values)


def ridge(penalty: float) -> Filter:
    return lambda values: 1 / (values + penalty)


def gradient_descent(rate: float, steps: int) -> Filter:
    """``steps`` from 0 on (1/2) sum (w . x_i - y_i)^2, at ``rate`` / the largest eigenvalue of S.

    (1 - (1 - rate s / s_max)^steps) / s; a rate below 2 converges whatever the inputs.
    """

    def kept(values: Tensor) -> Tensor:
        return _inverse(values, 1 - (1 - rate * values / _largest(values)) ** steps)

    return kept


def newton(steps: int) -> Filter:
    """Newton's iteration for S^+: M_0 = S / s_max^2, M <- 2 M - M S M; w = M b.

    In S's basis 1 - M s squares itself at every step: it is (1 - (s / s_max)^2)^(2^steps).
    """

    def kept(values: Tensor) -> Tensor:
        return _inverse(values, 1 - (1 - (values / _largest(values)) ** 2) ** (2**steps))

    return kept


def online_gradient_descent(x: Tensor, y: Tensor, rate: float, passes: int = 1) -> Tensor:
    """One example a step, in order, ``passes`` times over the first k: the guess for every x_k, [..., points].

    w <- w - rate (w . x_i - y_i) x_i / d. The first pass over k examples is the first over k + 1 without its last step.
    """
    x, y = x.detach().cpu().double(), y.detach().cpu().double()
    points, d = x.shape[-2:]
    every = x.new_zeros(*x.shape[:-2], points, d)  # weights by k
    for _ in range(passes):
        for i in range(points - 1):
            row = x[..., i, None, :]
            later = every[..., i + 1 :, :]  # those that have seen example i
            error = (later * row).sum(-1, keepdim=True) - y[..., i, None, None]
            every = torch.cat([every[..., : i + 1, :], later - rate / d * error * row], -2)
    return (every * x).sum(-1)


# Linear dynamics s_{t+1} = W s_t, guessed in closed form: by steps of GD on the pairs seen so far, or by ridge.


RIDGE, ONE_STEP = "least squares, ridge", "one GD step"


def closed_forms(search: Tensor, steps: tuple[int, ...]) -> dict[str, Callable[[Tensor], Tensor]]:
    """GD of each number of steps and ridge, with the rate and the penalty that are best on ``search``."""
    target = search[:, 1:]

    def best(form: Callable[[Tensor, float], Tensor], numbers: list[float]) -> float:
        def loss(number: float) -> float:
            found = float((form(search, number) - target).square().sum(-1).mean())
            return found if found == found else float("inf")

        return min(numbers, key=loss)

    etas = torch.logspace(-2, 1, 40).tolist()
    eta = best(one_step_gd, etas)
    penalty = best(ridge_dynamics, torch.logspace(-3, 2, 16).tolist())
    found: dict[str, Callable[[Tensor], Tensor]] = {
        ONE_STEP: lambda sequences: one_step_gd(sequences, eta),
        RIDGE: lambda sequences: ridge_dynamics(sequences, penalty),
    }
    for count in dict.fromkeys(steps):
        if count > 1:
            rate = best(partial(several_steps, steps=count), etas)
            found[f"{count} GD steps"] = partial(several_steps, eta=rate, steps=count)
    return found


def sums(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """At every t, over i < t: sum s_i s_i^T and sum s_i s_{i+1}^T, each [..., length, d, d]."""
    now, following = sequences[..., :-1, :], sequences[..., 1:, :]
    inner = (now.unsqueeze(-1) * now.unsqueeze(-2)).cumsum(-3)
    cross = (now.unsqueeze(-1) * following.unsqueeze(-2)).cumsum(-3)
    return (
        torch.cat([torch.zeros_like(inner[..., :1, :, :]), inner[..., :-1, :, :]], -3),
        torch.cat([torch.zeros_like(cross[..., :1, :, :]), cross[..., :-1, :, :]], -3),
    )


def several_steps(sequences: Tensor, eta: float, steps: int) -> Tensor:
    """At every t, ``steps`` of GD from W = 0 on the mean of |W s_i - s_{i+1}|^2 / 2 over i < t, then W s_t; the mean is
    over t + 1, as attention's own is.
    """
    inner, cross = sums(sequences)
    now = sequences[..., :-1, :].unsqueeze(-1)
    count = torch.arange(1, now.shape[-3] + 1).view(-1, 1, 1)
    weight = torch.zeros_like(inner)  # W^T
    for _ in range(steps):
        weight = weight - eta / count * (inner @ weight - cross)
    return (weight.mT @ now).squeeze(-1)


def preconditioned(sequences: Tensor, penalty: float = 1.0) -> Tensor:
    """(sum_{i<t} s_i s_i^T / t + penalty I)^{-1} s_t at every t: [..., length, d]."""
    inner, _ = sums(sequences)
    now = sequences[..., :-1, :]
    count = torch.arange(now.shape[-2]).clamp(min=1).view(-1, 1, 1)
    found: Tensor = torch.linalg.solve(inner / count + penalty * torch.eye(now.shape[-1]), now.unsqueeze(-1)).squeeze(
        -1
    )
    return found


def one_step_gd(sequences: Tensor, eta: float) -> Tensor:
    """At every t, one step from W = 0 on the mean of |W s_i - s_{i+1}|^2 / 2 over i < t, then W s_t.

    Attention's own average counts the token at hand too (t + 1 of them), and so does this one.
    """
    now, following = sequences[..., :-1, :], sequences[..., 1:, :]
    scores = (now @ now.mT).tril(-1)
    count = torch.arange(1, now.shape[-2] + 1).unsqueeze(-1)
    return eta * (scores / count) @ following


def ridge_dynamics(sequences: Tensor, penalty: float) -> Tensor:
    """At every t, the ridge regression of s_{i+1} on s_i over i < t, then W s_t: descent with the best
    preconditioner.
    """
    now, following = sequences[..., :-1, :], sequences[..., 1:, :]
    d = now.shape[-1]
    inner = penalty * torch.eye(d).expand(*now.shape[:-2], d, d)
    cross = torch.zeros_like(inner)  # sum s_i s_{i+1}^T
    out = [torch.zeros_like(now[..., 0, :])]
    for t in range(1, now.shape[-2]):
        last = now[..., t - 1, :, None]
        inner, cross = inner + last @ last.mT, cross + last @ following[..., t - 1, None, :]
        out.append((torch.linalg.solve(inner, now[..., t, :, None]).mT @ cross).squeeze(-2))
    return torch.stack(out, -2)


# The lasso at every length of a prompt, by coordinate descent on many prompts at once.


def lasso_weights(inner: Tensor, moments: Tensor, penalty: Tensor, sweeps: int = 200) -> Tensor:
    """argmin 1/2 w^T S w - b^T w + penalty |w|_1: S [..., d, d], b [..., d], penalty [...] -> [..., d]."""
    weights = torch.zeros_like(moments)
    scale = inner.diagonal(dim1=-2, dim2=-1)
    for _ in range(sweeps):
        for j in range(moments.shape[-1]):
            rest = moments[..., j] - (inner[..., j, :] * weights).sum(-1) + scale[..., j] * weights[..., j]
            soft = rest.sign() * (rest.abs() - penalty).clamp(min=0)
            weights[..., j] = torch.where(scale[..., j] > 0, soft / scale[..., j].clamp(min=1e-300), 0.0)
    return weights


def lasso(x: Tensor, y: Tensor, alpha: float, sweeps: int = 200) -> Tensor:
    """The guess for every x from the examples before it, with scikit-learn's objective (1/2k) |X w - y|^2 + alpha
    |w|_1: x [..., points, d], y [..., points] -> [..., points].
    """
    x, y = x.detach().cpu().double(), y.detach().cpu().double()
    inner = (x.unsqueeze(-1) * x.unsqueeze(-2)).cumsum(-3)[..., :-1, :, :]
    moments = (x * y.unsqueeze(-1)).cumsum(-2)[..., :-1, :]
    counts = torch.arange(1, x.shape[-2], dtype=x.dtype).expand(inner.shape[:-2])
    weights = lasso_weights(inner, moments, alpha * counts, sweeps)
    guesses = (weights * x[..., 1:, :]).sum(-1)
    return torch.cat([torch.zeros_like(guesses[..., :1]), guesses], -1)


def nearest(x: Tensor, y: Tensor, k: int = 3) -> Tensor:
    """The mean target of the (up to) k nearest examples before each x: [..., points, d], [..., points] -> [..., points]

    The first guess, of no examples, is 0.
    """
    points = x.shape[-2]
    apart = torch.cdist(x, x)
    unseen = torch.ones(points, points, dtype=torch.bool, device=x.device).triu()
    found = apart.masked_fill(unseen, torch.inf).topk(min(k, points), largest=False)
    kept = found.values.isfinite().to(y.dtype)
    values = y.unsqueeze(-2).expand(*y.shape[:-1], points, points).gather(-1, found.indices)
    return (values * kept).sum(-1) / kept.sum(-1).clamp(min=1)


# Greedy regression trees and gradient boosting, for many prompts at once (scikit-learn is the oracle in the tests).


@dataclass(frozen=True)
class Trees:
    """One tree a prompt, full to ``depth``; nodes are numbered level by level. A node that could not be split sends
    everything to the left.
    """

    depth: int
    feature: Tensor  # [prompts, nodes]
    threshold: Tensor  # [prompts, nodes]
    leaves: Tensor  # [prompts, 2^depth]

    def predict(self, x: Tensor) -> Tensor:
        """[prompts, points, d] -> [prompts, points]."""
        node = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        for _ in range(self.depth):
            node = 2 * node + 1 + _goes_right(x, self.feature.gather(1, node), self.threshold.gather(1, node))
        return self.leaves.gather(1, node - (2**self.depth - 1))


def _goes_right(x: Tensor, feature: Tensor, threshold: Tensor) -> Tensor:
    return x.gather(-1, feature.unsqueeze(-1)).squeeze(-1) > threshold


def grow(x: Tensor, y: Tensor, depth: int) -> Trees:
    """Splits that lower the squared error most, thresholds half-way: x [prompts, points, d], y [prompts, points]."""
    prompts, points, _ = x.shape
    node = torch.zeros((prompts, points), dtype=torch.long, device=x.device)
    order = x.argsort(1)
    ordered = x.gather(1, order)
    feature = torch.zeros((prompts, 2**depth - 1), dtype=torch.long, device=x.device)
    threshold = torch.full((prompts, 2**depth - 1), torch.inf, dtype=x.dtype, device=x.device)
    means = torch.zeros((prompts, 2 ** (depth + 1) - 1), dtype=y.dtype, device=y.device)
    means[:, 0] = y.mean(1)
    for level in range(depth):
        for one in range(2**level - 1, 2 ** (level + 1) - 1):
            member = node == one
            feature[:, one], threshold[:, one] = _best_split(ordered, order, y, member)
        node = 2 * node + 1 + _goes_right(x, feature.gather(1, node), threshold.gather(1, node))
        for child in range(2 ** (level + 1) - 1, 2 ** (level + 2) - 1):
            member = (node == child).to(y.dtype)
            count = member.sum(1)
            # An empty leaf is never reached by what it was grown on; others get its parent's mean.
            means[:, child] = torch.where(
                count > 0, (member * y).sum(1) / count.clamp(min=1), means[:, (child - 1) // 2]
            )
    return Trees(depth, feature, threshold, means[:, 2**depth - 1 :])


def _best_split(ordered: Tensor, order: Tensor, y: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Feature and threshold for the members of a node, each [prompts]; threshold infinite where there is none."""
    d = ordered.shape[-1]
    weight = member.to(y.dtype)
    inside = weight.unsqueeze(-1).expand(-1, -1, d).gather(1, order)  # [prompts, points, d], along each input
    values = (y * weight).unsqueeze(-1).expand(-1, -1, d).gather(1, order)
    count, total = inside.cumsum(1), values.cumsum(1)
    rest, other = count[:, -1:] - count, total[:, -1:] - total
    gain = total.square() / count.clamp(min=1) + other.square() / rest.clamp(min=1)
    following = ordered.masked_fill(inside == 0, torch.inf).flip(1).cummin(1).values.flip(1)
    following = torch.cat([following[:, 1:], torch.full_like(following[:, :1], torch.inf)], 1)
    allowed = (inside > 0) & (rest > 0) & (following > ordered)
    flat = gain.masked_fill(~allowed, -torch.inf).flatten(1)
    best = flat.argmax(1, keepdim=True)
    half_way = ((ordered + following) / 2).flatten(1).gather(1, best).squeeze(1)
    known = flat.gather(1, best).squeeze(1).isfinite()
    return (best % d).squeeze(1), torch.where(known, half_way, torch.inf)


def boost(x: Tensor, y: Tensor, query: Tensor, rounds: int = 50, depth: int = 4, rate: float = 0.1) -> Tensor:
    """Gradient boosting of squared error: fitted to x, y and asked at query [prompts, m, d] -> [prompts, m]."""
    start = y.mean(1, keepdim=True)
    fitted, guess = start.expand_as(y), start.expand(-1, query.shape[1])
    for _ in range(rounds):
        trees = grow(x, y - fitted, depth)
        fitted, guess = fitted + rate * trees.predict(x), guess + rate * trees.predict(query)
    return guess


def fit_networks(
    x: Tensor,
    y: Tensor,
    query: Tensor,
    generator: torch.Generator,
    hidden: int = 100,
    steps: int = 300,
    rate: float = 5e-3,
) -> Tensor:
    """One relu network a prompt: x [prompts, points, d], y [prompts, points], query [prompts, m, d] -> [prompts, m]."""
    prompts, _, d = x.shape
    first = (normal(generator, prompts, d, hidden) * d**-0.5).requires_grad_()
    second = (normal(generator, prompts, hidden, 1) * hidden**-0.5).requires_grad_()
    optimizer = torch.optim.Adam([first, second], lr=rate)

    def guess(inputs: Tensor) -> Tensor:
        found: Tensor = (torch.relu(inputs @ first) @ second).squeeze(-1)
        return found

    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            (guess(x) - y).square().mean(-1).sum().backward()
            optimizer.step()
    return guess(query).detach()


Predict = Callable[[Tensor], Tensor]  # tokens [copies, tasks, n + 1, d + 1] -> [copies, tasks]


def half_mse(predict: Predict, batch: TaskBatch) -> Tensor:
    """1/2 E (prediction - target)^2 for each copy: [copies]."""
    return 0.5 * (predict(batch.tokens) - batch.target).square().mean(-1)


def sensitivity(predict: Predict, batch: TaskBatch) -> tuple[Tensor, Tensor]:
    """Predictions [copies, tasks], and d prediction / d query [copies, tasks, d]."""
    query = batch.query.detach().clone().requires_grad_()
    predictions = predict(TaskBatch(batch.x, batch.y, query, batch.target).tokens)
    (gradient,) = torch.autograd.grad(predictions.sum(), query)
    return predictions.detach(), gradient


def alignment(first: Predict, second: Predict, batch: TaskBatch) -> dict[str, Tensor]:
    """von Oswald et al.'s three measures, and the two losses; each [copies].

    ``prediction difference`` is the mean |difference|; ``sensitivity cosine`` and ``sensitivity distance``
    compare the derivatives of the prediction by the query.
    """
    (p, dp), (q, dq) = sensitivity(first, batch), sensitivity(second, batch)
    return {
        "loss": 0.5 * (p - batch.target).square().mean(-1),
        "reference loss": 0.5 * (q - batch.target).square().mean(-1),
        "prediction difference": (p - q).abs().mean(-1),
        "sensitivity cosine": torch.cosine_similarity(dp, dq, dim=-1).mean(-1),
        "sensitivity distance": (dp - dq).norm(dim=-1).mean(-1),
    }


def errors(guesses: Tensor, prompts: Prompts) -> Tensor:
    """Mean squared error by number of examples: [copies, points], on the CPU."""
    return (guesses.cpu().double() - prompts.target.cpu().double()).square().mean(1)


def implied_weights(last_guess: Callable[[Prompts], Tensor], context: Prompts, queries: int) -> Tensor:
    """The weights that a learner behaves as after the examples of each prompt: least squares on its guesses for
    ``queries`` other inputs in place of the last. [copies, contexts, d], float64.
    """
    copies, contexts, _, d = context.x.shape
    (generator,) = generators([0], 8, context.x.device)
    asked = torch.randn((contexts, queries, d), generator=generator, device=context.x.device)
    x = context.x[:, :, None].expand(-1, -1, queries, -1, -1).clone()
    x[..., -1, :] = asked
    y = context.y[:, :, None].expand(-1, -1, queries, -1)
    flat = Prompts(x.flatten(1, 2), y.flatten(1, 2), y.flatten(1, 2))
    guesses = last_guess(flat).view(copies, contexts, queries, 1)
    inputs = asked.cpu().double().expand(copies, -1, -1, -1)
    found: Tensor = torch.linalg.lstsq(inputs, guesses.cpu().double()).solution.squeeze(-1)
    return found
