"""How the learning itself went: the sizes of gradients and updates."""

from __future__ import annotations

import torch

from dualscope.core.statistics import SIZE
from dualscope.metrics.case import Case
from dualscope.metrics.metric import metric
from dualscope.metrics.values import Logged, Values


@metric(
    "grad_norm",
    "|dL/dW_l| of each step",
    "norm of the gradient of a layer's keys and values, per step",
    applies=lambda case: case.learned.log.grad_norm is not None,
    within=SIZE,
)
def grad_norm(case: Case) -> Values:
    return Logged("grad_norm", torch.as_tensor(case.learned.log.grad_norm))


@metric(
    "update_norm",
    "|W_l - W_l(0)| / |W_l(0)|",
    "how far a layer's keys and values moved, relative to the weights",
    applies=lambda case: case.learned.log.update_norm is not None,
    within=SIZE,
)
def update_norm(case: Case) -> Values:
    return Logged("update_norm", torch.as_tensor(case.learned.log.update_norm))


@metric(
    "clipped_steps",
    "number of steps",
    "how many steps the clip cut",
    applies=lambda case: case.learned.log.clipped_steps is not None,
    within=SIZE,
)
def clipped_steps(case: Case) -> Values:
    return Logged("clipped_steps", torch.as_tensor(case.learned.log.clipped_steps))
