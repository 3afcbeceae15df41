"""Gradient descent written as weights of a transformer, for many step sizes at once."""

from collections.abc import Sequence

import torch

from dualscope.regression.architectures.transformer import Transformer
from dualscope.regression.comparison import half_mse
from dualscope.regression.problems.function_classes import TaskBatch
from dualscope.theory import linear_attention_step as vonoswald


def gd_transformer(etas: Sequence[float], depth: int, d: int, n: int, gammas: Sequence[float] = ()) -> Transformer:
    """``depth`` recurrent linear layers that are so many steps of GD (of GD++ with a gamma), a copy for
    each eta.
    """
    model = Transformer(d + 1, depth, [torch.Generator()] * len(etas), recurrent=True)
    layers = [
        vonoswald.gd_layer(torch.zeros(1, d), eta, n, gamma)
        for eta, gamma in zip(etas, gammas or [0.0] * len(etas), strict=True)
    ]
    with torch.no_grad():
        model.key.copy_(torch.stack([layer.key for layer in layers])[:, None, None])
        model.query.copy_(torch.stack([layer.query for layer in layers])[:, None, None])
        model.value.copy_(torch.stack([layer.value for layer in layers])[:, None, None])
        # The construction sums over the examples, the transformer averages.
        model.output.copy_(n * torch.stack([layer.projection for layer in layers])[:, None, None])
    return model.requires_grad_(False)


def best_eta(batch: TaskBatch, steps: int, last: float = 25.0) -> float:
    """Line search on training draws (no leading dimension) for the rate of ``steps`` GD steps, to 0.1.

    The loss falls, then rises with the rate, so a coarse look says where to look closely.
    """
    start = torch.zeros(1, batch.x.shape[-1])

    def loss(eta: float) -> float:
        weight = vonoswald.gd_steps(batch.x, batch.y.unsqueeze(-1), start, eta, steps)  # [tasks, 1, d]
        found = 0.5 * ((weight.squeeze(-2) * batch.query).sum(-1) - batch.target).square().mean().item()
        return found if found == found else float("inf")

    coarse = min(torch.arange(0.001, last, 1.0).tolist(), key=loss)
    result: float = min((torch.arange(-10, 11) / 10 + coarse).clamp(min=0.001).tolist(), key=loss)
    return result


def best_eta_gamma(batch: TaskBatch, depth: int, eta: float) -> tuple[float, float]:
    """Simplex search on training draws for the two numbers of GD++, from GD's own step size."""
    from scipy.optimize import minimize

    n, d = batch.x.shape[-2:]
    one = repeat(batch, 1)

    def loss(point: Sequence[float]) -> float:
        model = gd_transformer([float(point[0])], depth, d, n, [float(point[1])])
        return float(torch.nan_to_num(half_mse(model.predict, one), nan=1e9))

    start = [[eta, 0.0], [eta * 1.3, 0.1], [eta, 0.2]]
    found = minimize(loss, start[0], method="Nelder-Mead", options={"initial_simplex": start, "maxfev": 50})
    return float(found.x[0]), float(found.x[1])


def repeat(batch: TaskBatch, copies: int) -> TaskBatch:
    """The same tasks for every copy."""
    return TaskBatch(*(part.expand(copies, *part.shape) for part in (batch.x, batch.y, batch.query, batch.target)))
