"""GPT-2 blocks trained on prompts of (x, y) pairs, with a curriculum: one way for every experiment that needs it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size, pair_tokens
from dualscope.regression.problems import FunctionClass, Prompts, draw_prompts, generators
from dualscope.regression.training import Schedule, Training, Workplace, drawn_ahead, train

ALL, LONGEST = "squared error, all lengths", "squared error, longest prompt"
WATCHED = 256  # prompts a seed
REST = 0.25  # of a training at its last rate: more than the fifth over which its error must not fall
AVERAGED = 0.01  # of the steps so far are weights a mean: so few that a curve which still falls shows it


@dataclass(frozen=True)
class Curriculum:
    """Few inputs and short prompts first (after Garg et al.): more inputs in ``stages`` until step ``until``, and
    prompts of half the length until then. Few lengths are few recordings.

    >>> [Curriculum(until=90).at(step, d=20, points=41) for step in (0, 40, 89, 90)]
    [(2, 21), (10, 21), (18, 21), (20, 41)]
    """

    until: int = 0
    stages: int = 9
    start: float = 0.1  # share of the inputs at the beginning: with a quarter of 20 some seeds never leave the plateau

    def at(self, step: int, d: int, points: int) -> tuple[int, int]:
        """How many inputs are not zero, and how long prompts are."""
        if step >= self.until:
            return d, points
        share = self.start + (1 - self.start) * (step * self.stages // self.until) / self.stages
        return max(1, math.ceil(d * share)), max(2, math.ceil(points / 2))


@contextmanager
def fast(device: torch.device) -> Iterator[None]:
    """bfloat16 products on a GPU; the residual stream, norms and weights stay in float32."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
        yield


@dataclass(frozen=True)
class TrainedLearner:
    """A trained learner, how its training went, and where it began."""

    model: Gpt2Learner
    training: Training
    start: Tensor  # the weights before training, as ``model.flat``


def train_on_prompts(
    functions: FunctionClass,
    points: int,
    seeds: Sequence[int],
    size: Size,
    schedule: Schedule,
    batch: int,
    place: Workplace,
    curriculum: Curriculum = Curriculum(),
    attention: Mapping[str, Any] | None = None,
    watch_every: int = 100,
) -> TrainedLearner:
    """All seeds at once, on fresh prompts at every step; the squared error at every position is minimised."""
    model = Gpt2Learner(functions.d, points, seeds, size, attention).to(place.device)
    if place.compiled:
        model.compile_blocks()
    start = model.flat.detach().cpu().clone()
    shown = draw_prompts(functions, WATCHED, points, generators(seeds, 2, place.device))

    def draw(step: int, tasks: int) -> tuple[Tensor, ...]:
        dims, length = curriculum.at(step, functions.d, points)
        prompts = draw_prompts(functions, tasks, length, generators(seeds, 1, place.device, step), dims)
        return prompts.x, prompts.y

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with fast(place.device):
            guesses = model(x, y)
        found: Tensor = (guesses.float() - y).square().mean((1, 2))
        return found

    @torch.no_grad()
    def watch() -> dict[str, Tensor]:
        with fast(place.device):
            errors = (model(shown.x, shown.y).float() - shown.target).square().mean(1)
        return {ALL: errors.mean(-1), LONGEST: errors[:, -1]}

    # What the gradients were before in-context learning appears says little of those after: a short memory.
    quick_memory = replace(schedule, beta2=0.98, spectral=True, rest=REST, average=AVERAGED)
    training = train(model, drawn_ahead(batch, draw), loss, quick_memory, place, watch, watch_every)
    return TrainedLearner(model.requires_grad_(False), training, start)


@torch.no_grad()
def guesses_of(model: Gpt2Learner, prompts: Prompts, at_once: int = 256) -> Tensor:
    """The guess of every y, in float32: [copies, tasks, points], on the CPU."""
    parts = [
        model(x, y).float().cpu() for x, y in zip(prompts.x.split(at_once, 1), prompts.y.split(at_once, 1), strict=True)
    ]
    return torch.cat(parts, 1)


@torch.no_grad()
def states_of(model: Gpt2Learner, prompts: Prompts, at_once: int = 256) -> list[Tensor]:
    """The residual stream at the token of every x, by layer (the first is the embedding): each [copies, tasks,
    points, width], on the CPU.
    """
    return _by_layer(model, prompts, lambda state: state[..., ::2, :], at_once)


@torch.no_grad()
def summed_up_states_of(model: Gpt2Learner, prompts: Prompts, at_once: int = 256) -> list[Tensor]:
    """The residual stream at the token of the last x, and its mean over the tokens of the examples' y, by layer: each
    [copies, tasks, 2 width], on the CPU. The last y, which is asked for, is not among them.
    """
    return _by_layer(
        model, prompts, lambda state: torch.cat([state[..., -2, :], state[..., 1:-1:2, :].mean(-2)], -1), at_once
    )


@torch.no_grad()
def all_states_of(model: Gpt2Learner, prompts: Prompts) -> Tensor:
    """The residual stream at every token but the last, which is the answer that is asked for: [layers, copies, tasks,
    tokens, width], where the learner is. The first layer is the embedding.
    """
    return torch.stack(model.hidden(pair_tokens(prompts.x, prompts.y), keep=True))[..., :-1, :]


def _by_layer(model: Gpt2Learner, prompts: Prompts, kept: Callable[[Tensor], Tensor], at_once: int) -> list[Tensor]:
    """What is ``kept`` of every layer's states [copies, tasks, tokens, width], some prompts at a time."""
    parts = []
    for x, y in zip(prompts.x.split(at_once, 1), prompts.y.split(at_once, 1), strict=True):
        parts.append([kept(state).float().cpu() for state in model.hidden(pair_tokens(x, y), keep=True)])
    return [torch.cat(layer, 1) for layer in zip(*parts, strict=True)]
