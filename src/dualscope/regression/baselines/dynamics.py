"""Linear dynamics s_{t+1} = W s_t, guessed in closed form: by steps of GD on the pairs seen so far, or by ridge."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

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
    penalty = best(least_squares, torch.logspace(-3, 2, 16).tolist())
    found: dict[str, Callable[[Tensor], Tensor]] = {
        ONE_STEP: lambda sequences: one_step_gd(sequences, eta),
        RIDGE: lambda sequences: least_squares(sequences, penalty),
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


def least_squares(sequences: Tensor, penalty: float) -> Tensor:
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
