"""Adam's steps (Kingma and Ba 2015), for the learners that may use more than plain descent."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dualscope.descent.gradients import Dense, Gradient, dense
from dualscope.descent.loop import Adjusted


@dataclass
class Adam:
    """A gradient becomes Adam's direction; the state is of one training run.

    All of the state is on the device and changed in place, so that a step that is recorded as a CUDA graph moves it on.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    steps: Tensor | None = None
    mean: Dense = field(default_factory=dict)
    square: Dense = field(default_factory=dict)

    @torch.no_grad()
    def direction(self, gradient: Gradient) -> Gradient:
        found = dense(gradient)
        names, values = list(found), list(found.values())
        if self.steps is None:
            self.steps = torch.zeros((), dtype=torch.float64, device=values[0].device)
            self.mean = {name: torch.zeros_like(value) for name, value in found.items()}
            self.square = {name: torch.zeros_like(value) for name, value in found.items()}
        self.steps += 1
        mean, square = ([store[name] for name in names] for store in (self.mean, self.square))
        torch._foreach_lerp_(mean, values, 1 - self.beta1)
        torch._foreach_mul_(square, self.beta2)
        torch._foreach_addcmul_(square, values, values, 1 - self.beta2)
        first, second = 1 - self.beta1**self.steps, 1 - self.beta2**self.steps
        return {
            name: (m / first.to(m)) / ((s / second.to(s)).sqrt() + self.eps)
            for name, m, s in zip(names, mean, square, strict=True)
        }

    def __call__(self, gradient: Gradient, step: int, norms: Tensor) -> Adjusted:
        """As the adjustment of `dualscope.descent.loop`: no scaling of a layer's gradient gives this direction."""
        if step == 0:  # a run that is repeated begins anew
            self.steps = None
        return Adjusted(self.direction(gradient), cut=True)
