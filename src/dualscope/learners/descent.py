"""Stochastic gradient descent on the demonstrations: what all gradient learners share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from dualscope.errors import InputError
from dualscope.learners.beside import weights_for
from dualscope.learners.learner import Learned, Log, Options
from dualscope.learners.linearized_read import read_along
from dualscope.learners.recorder import Recorder
from dualscope.learners.replay import is_graphable, replayed
from dualscope.learners.samples import Sample, ordered, samples
from dualscope.learners.slots import Slot, Whole, layer_of, wide
from dualscope.learners.weights import Gradient, Weights
from dualscope.models.capture import Session, capturing

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import DemonstrationTokens


class DescentOptions(Options):
    """What every gradient learner lets you choose. The defaults are the papers'."""

    layers: tuple[int, ...] | None = Field(None, description="the layers that learn; none given: all")
    epochs: int = Field(1, ge=1, description="passes over the demonstrations")
    full_batch: bool = Field(False, description="one step an epoch, on the mean over the demonstrations")
    order: int = Field(0, ge=0, description="0: the episode's own order; k: its k-th permutation")
    loss: Literal["all", "label"] = Field("all", description="the tokens of a demonstration that count")
    parameters: Literal["kv", "k", "v"] = Field("kv", description="key or value projections, or both")
    biases: bool = Field(True, description="whether the projections' biases learn too")

    def slots(self, model: Model) -> list[Slot]:
        if self.layers is not None and (wrong := [n for n in self.layers if not 0 <= n < model.n_layers]):
            raise InputError(f"layers: {model.name} has layers 0 to {model.n_layers - 1}; found {wrong}")
        if self.layers is not None and len(set(self.layers)) < len(self.layers):
            raise InputError(f"layers: each is named once; found {list(self.layers)}")
        roles = {"kv": ("key", "value"), "k": ("key",), "v": ("value",)}[self.parameters]
        return [part for part in model.parts(self.layers, roles) if self.biases or part.kind == "weight"]


@dataclass(frozen=True)
class Adjusted:
    """A step's gradient, perhaps cut, and how much each layer's is to be scaled."""

    gradient: Gradient
    factors: Tensor | None = None  # [layers]; None: as it is
    cut: bool = False  # entry by entry, so that no scaling could have done it
    clipped: Tensor | None = None  # [layers] 1 where the layer was cut, on the device


# The gradient of one step, that step's number, and the gradient's norm in each layer.
Adjust = Callable[[Gradient, int, Tensor], Adjusted]


def unchanged(gradient: Gradient, step: int, norms: Tensor) -> Adjusted:
    return Adjusted(gradient)


@dataclass(frozen=True)
class Stride:
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


def take(stride: Stride, gradient: Gradient) -> Taken:
    """Move the weights against a gradient."""
    weights = stride.weights
    norms = weights.norms(gradient)
    adjusted = stride.adjust(gradient, stride.number, norms)
    found = {name: value.to(weights.changes[name].dtype) for name, value in adjusted.gradient.items()}
    if adjusted.factors is not None:
        found = {
            name: value if (at := layer_of(name)) is None else value * adjusted.factors[at]
            for name, value in found.items()
        }
    weights.move(found, -stride.lr)
    stride.recorder.commit(stride.lr, adjusted.factors, adjusted.cut)
    untouched = adjusted.factors is None and not adjusted.cut
    return Taken(norms, stride.lr * (norms if untouched else weights.norms(found)), adjusted.clipped)


# Runs the model on the samples of one step and takes it.
Step = Callable[[Stride, Sequence[Sample]], Taken]


def stepping(gradient: Callable[[Stride, Sample, int], Gradient]) -> Step:
    """The step along the mean over the samples of a gradient, which is told how many samples there are."""

    def step(stride: Stride, batch: Sequence[Sample]) -> Taken:
        found = mean_gradient(stride.weights, batch, lambda sample: gradient(stride, sample, len(batch)))
        return take(stride, found)

    return step


def descend(
    bench: Bench,
    training: Sequence[DemonstrationTokens],
    lr: float,
    options: DescentOptions,
    step: Step,
    adjust: Adjust = unchanged,
    slots: Sequence[Slot] | None = None,
    by_token: bool = False,
    tangent: bool = False,
) -> Learned:
    """Train on the demonstrations, read the queries with the weights moved, and put the weights back."""
    model, lesson = bench.model, bench.lesson
    sequences = samples(training, lesson.bos, model.device, options.loss)
    order = ordered(len(sequences), options.order, lesson.episode.seed)
    batches = [[sequences[i]] for i in order]
    if by_token:
        batches = [[one] for batch in batches for one in batch[0].by_token()]
    if options.full_batch:
        batches = [[sample for batch in batches for sample in batch]]
    session = Session(plain=tangent, want=frozenset({"queries"} if "kendall" in bench.want else ()))
    slots = options.slots(model) if slots is None else slots
    recorder = Recorder(
        model,
        session,
        kendall="kendall" in bench.want,
        dual="dual" in bench.want,
        learning=frozenset(
            (part.layer, part.role)
            for part in model.parts()
            if any(slot in (part, Whole(part.parameter)) for slot in slots) and part.kind == "weight"
        ),
    )
    with weights_for(model, slots, tangent) as weights:
        taken: list[Taken] = []
        with ExitStack() as stack:
            stack.enter_context(capturing(model, session))
            if recorder.on:
                stack.enter_context(recorder.watching())
            if is_graphable(model, batches, adjust is unchanged and not tangent and not recorder.on):
                step = replayed(step, batches, options.epochs)
            for batch in batches * options.epochs:
                taken.append(step(Stride(weights, recorder, lr, len(taken), adjust), batch))
        log = _log(weights, taken, recorder)
        trace = read_along(weights, bench) if tangent else model.read(lesson, want=bench.read_want)
        return Learned(trace, weights.delta(), log)


def _log(weights: Weights, taken: list[Taken], recorder: Recorder) -> Log:
    cut = [t.clipped for t in taken if t.clipped is not None]
    cut_layers = torch.stack(cut) if cut else None  # [steps, layers]
    return Log(
        grad_norm=torch.stack([t.grad_norm for t in taken]),
        step_norm=torch.stack([t.step_norm for t in taken]),
        update_norm=weights.update_norms(),
        clipped_steps=None if cut_layers is None else int(cut_layers.any(1).sum()),
        clipped_layer_steps=None if cut_layers is None else cut_layers.sum(0),
        records=recorder.records(),
    )


def mean_gradient(
    weights: Weights, batch: Sequence[Sample], gradient: Callable[[Sample], Gradient]
) -> Gradient:
    """The mean over the samples of a batch, one at a time: nothing is padded, one graph lives at once."""
    if len(batch) == 1:
        return gradient(batch[0])
    dtype = wide(weights.model.dtype)
    total: Gradient = {}
    for sample in batch:
        for name, value in gradient(sample).items():
            share = value.to(dtype) / len(batch)
            total[name] = total[name] + share if name in total else share
    return total
