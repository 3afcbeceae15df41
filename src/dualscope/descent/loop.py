"""Stochastic gradient descent, step by step: a gradient, perhaps adjusted, and the weights moved against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dualscope.descent.dual_records import Log, Recorder
from dualscope.descent.parameters import Dense, Gradient, Outer, dense, layer_of, wide
from dualscope.descent.samples import Sample
from dualscope.descent.trainable import Weights


@dataclass(frozen=True)
class Adjusted:
    """A step's gradient, perhaps cut, and how much each layer's is to be scaled."""

    gradient: Gradient
    factors: Tensor | None = None  # [layers] or [draws, layers]; None: as it is
    cut: bool = False  # entry by entry, so that no scaling could have done it
    clipped: Tensor | None = None  # [layers] 1 where the layer was cut, on the device


# The gradient of one step, that step's number, and the gradient's norm in each layer. A step may be recorded once and
# replayed: of the number only whether it is 0 counts, and whatever else changes is kept on the device, in place.
Adjust = Callable[[Gradient, int, Tensor], Adjusted]


def unchanged(gradient: Gradient, _step: int, _norms: Tensor) -> Adjusted:
    return Adjusted(gradient)


@dataclass(frozen=True)
class StepState:
    """One step of a learner in progress: everything that `take` needs besides the gradient."""

    weights: Weights
    recorder: Recorder
    lr: float
    number: int
    adjust: Adjust = unchanged


@dataclass(frozen=True)
class Taken:
    grad_norm: Tensor  # [layers], on the device: nothing waits for it
    step_norm: Tensor
    clipped: Tensor | None

    def copied(self) -> Taken:
        clipped = None if self.clipped is None else self.clipped.clone()
        return Taken(self.grad_norm.clone(), self.step_norm.clone(), clipped)

    def __add__(self, other: Taken) -> Taken:
        """Of steps that moved different layers."""
        cut = [c for c in (self.clipped, other.clipped) if c is not None]
        clipped = torch.stack(cut).sum(0) if cut else None
        return Taken(self.grad_norm + other.grad_norm, self.step_norm + other.step_norm, clipped)


def take(state: StepState, gradient: Gradient) -> Taken:
    """Move the weights against a gradient."""
    weights = state.weights
    norms = weights.norms(gradient)
    adjusted = state.adjust(gradient, state.number, norms)
    found = adjusted.gradient
    if adjusted.factors is not None:
        found = {name: _scaled(value, name, adjusted.factors) for name, value in found.items()}
    weights.move(found, -state.lr)
    state.recorder.commit(state.lr, adjusted.factors, adjusted.cut)
    untouched = adjusted.factors is None and not adjusted.cut
    return Taken(norms, state.lr * (norms if untouched else weights.norms(found)), adjusted.clipped)


def _scaled(value: Tensor | Outer, name: str, factors: Tensor) -> Tensor | Outer:
    layer = layer_of(name)
    if layer is None:
        return value
    device = value.errors.device if isinstance(value, Outer) else value.device
    factor = factors[..., layer].to(device)  # a number, or one for each draw
    if isinstance(value, Outer):
        return value.scaled(factor)
    return value.to(factors.dtype) * (factor if not factor.ndim else factor.view(-1, *[1] * (value.ndim - 1)))


# Runs the model on the samples of one step and takes it.
Step = Callable[[StepState, Sequence[Sample]], Taken]


def stepping(gradient: Callable[[StepState, Sample, int], Gradient]) -> Step:
    """A step along the mean of ``gradient`` over the samples; it is given the state, a sample and their number."""

    def step(state: StepState, batch: Sequence[Sample]) -> Taken:
        found = mean_gradient(state.weights, batch, lambda sample: gradient(state, sample, len(batch)))
        return take(state, found)

    return step


def log_of(weights: Weights, taken: list[Taken], recorder: Recorder) -> Log:
    cut = [t.clipped for t in taken if t.clipped is not None]
    cut_layers = torch.stack(cut) if cut else None  # [steps, layers]
    return Log(
        grad_norm=torch.stack([t.grad_norm for t in taken]),
        step_norm=torch.stack([t.step_norm for t in taken]),
        update_norm=weights.update_norms(),
        clipped_steps=None if cut_layers is None else int(cut_layers.any(1).sum()),
        records=recorder.records(),
    )


def mean_gradient(weights: Weights, batch: Sequence[Sample], gradient: Callable[[Sample], Gradient]) -> Gradient:
    """The mean over the samples of a batch, one at a time: nothing is padded, one graph lives at once."""
    if len(batch) == 1:
        return gradient(batch[0])
    dtype = wide(weights.model.dtype)
    total: Dense = {}
    for sample in batch:
        for name, value in dense(gradient(sample)).items():
            share = value.to(dtype) / len(batch)
            total[name] = total[name] + share if name in total else share
    return {**total}


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
