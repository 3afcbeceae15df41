"""Greedy regression trees and gradient boosting, for many prompts at once (scikit-learn is the oracle in the tests)."""

from dataclasses import dataclass

import torch
from torch import Tensor


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
