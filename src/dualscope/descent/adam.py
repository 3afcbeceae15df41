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
    So is the direction: the next step writes over it, which on a CPU takes half the time of making it anew.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    steps: Tensor | None = None
    mean: Dense = field(default_factory=dict)
    square: Dense = field(default_factory=dict)
    given: Dense = field(default_factory=dict)  # the direction

    @torch.no_grad()
    def direction(self, gradient: Gradient) -> Gradient:
        found = dense(gradient)
        names, values = list(found), list(found.values())
        if self.steps is None:
            self.steps = torch.zeros((), dtype=torch.float64, device=values[0].device)
            self.mean, self.square, self.given = (
                {name: torch.zeros_like(value) for name, value in found.items()} for _ in range(3)
            )
        self.steps += 1
        mean, square, given = ([store[name] for name in names] for store in (self.mean, self.square, self.given))
        torch._foreach_lerp_(mean, values, 1 - self.beta1)
        torch._foreach_mul_(square, self.beta2)
        torch._foreach_addcmul_(square, values, values, 1 - self.beta2)
        first, second = 1 - self.beta1**self.steps, 1 - self.beta2**self.steps
        # (mean / first) / (sqrt(square / second) + eps), with the numbers taken together.
        torch._foreach_copy_(given, square)
        torch._foreach_sqrt_(given)
        torch._foreach_add_(given, [(self.eps * second.sqrt()).to(value) for value in given])
        torch._foreach_div_(given, [(second.sqrt() / first).to(value) for value in given])
        torch._foreach_reciprocal_(given)
        torch._foreach_mul_(given, mean)
        return {**self.given}

    def forget(self) -> None:
        """Let go of the state of a run that is over: three numbers for each weight."""
        self.steps, self.mean, self.square, self.given = None, {}, {}, {}

    def __call__(self, gradient: Gradient, step: int, norms: Tensor) -> Adjusted:
        """As the adjustment of `dualscope.descent.loop`: no scaling of a layer's gradient gives this direction."""
        if step == 0:  # a run that is repeated begins anew
            self.forget()
        return Adjusted(self.direction(gradient), cut=True)
