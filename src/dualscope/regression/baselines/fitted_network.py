"""A two-layer network fitted to every prompt by Adam (Garg et al.'s baseline for that class)."""

import torch
from torch import Tensor

from dualscope.regression.problems.prompts import normal


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
