"""Task vectors (Hendel et al. 2023): the demonstrations are squeezed into one vector that the query then applies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dualscope.choosing.halving import Choice, Settings
from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.capture.block_hooks import OnResidual
from dualscope.models.reading.last_token import read_under_each

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model


# A vector put into the residual stream where the label is predicted: what task and function vectors do.


Mode = Literal["replace", "add"]


@dataclass(frozen=True)
class Steering:
    """A change of activations, not of weights: the residual after ``layer`` becomes the vector, or gains it."""

    layer: int
    vector: Tensor  # [width]
    mode: Mode

    @property
    def intervention(self) -> OnResidual:
        def edit(residual: Tensor, _session: Session) -> Tensor:
            vector = self.vector.to(residual)
            return vector.expand_as(residual) if self.mode == "replace" else residual + vector

        return OnResidual(self.layer, edit)

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return model.intervened(self.intervention)

    def randomised(self, seed: int, draw: int) -> Steering:
        """A random direction of the same norm."""
        noise = random_vector(self.vector.shape, seed, draw).to(self.vector)
        return replace(self, vector=noise * (self.vector.norm() / noise.norm()))


def random_vector(shape: tuple[int, ...], seed: int, draw: int) -> Tensor:
    """Gaussian, the same on every device."""
    state = int(np.random.SeedSequence([seed, 4, draw]).generate_state(1)[0])
    return torch.randn(shape, generator=torch.Generator().manual_seed(state), dtype=torch.float64)


def steered(bench: Bench, change: Steering, choice: Choice | None) -> Learned:
    """The queries without a context, the residual stream changed."""
    model = bench.model
    with change.applied(model):
        trace = model.read(bench.lesson, want=bench.read_want)
    return Learned(trace, change, one_layer=True, choice=choice)


def tried(bench: Bench, changes: Sequence[Steering]) -> Tensor:
    """The queries' label log-probabilities under each change: [changes, queries, classes]."""
    return read_under_each(bench.model, bench.lesson, [(one.intervention,) for one in changes])


def check_layer(model: Model, layer: int, learner: str) -> None:
    if not 0 <= layer < model.n_layers:
        raise InputError(
            f"learner '{learner}': option 'layer': {model.name} has layers 0 to {model.n_layers - 1}, found {layer}"
        )


class TaskVectorOptions(Options):
    mode: Mode = Field("replace", description="the vector takes the residual's place, or is added to it")
    layer: int | None = Field(None, ge=0, description="after which layer; none given: chosen on spare examples")
    dummies: int = Field(5, ge=1, description="spare examples that stand as dummy queries")


@LEARNERS.register("task-vector")
class TaskVector(Learner[TaskVectorOptions]):
    """The residual after one layer, of the context with dummy queries, in the query's own place without a context."""

    title = "a task vector"
    options = TaskVectorOptions
    family = "vector"

    open = ("layer",)

    def candidates(self, model: Model, options: TaskVectorOptions) -> list[Settings]:
        return [{"layer": layer} for layer in range(model.n_layers)]

    def materials(self, options: TaskVectorOptions) -> int:
        return options.dummies

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: TaskVectorOptions) -> Tensor:
        vectors = task_vectors(bench, options.dummies, options.mode)
        return tried(bench, [Steering(one["layer"], vectors[one["layer"]], options.mode) for one in candidates])

    def learn(self, bench: Bench, lr: float | None, options: TaskVectorOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.layer is not None
        check_layer(bench.model, options.layer, self.name)
        vectors = bench.once(
            ("task-vectors", options.dummies, options.mode), lambda: task_vectors(bench, options.dummies, options.mode)
        )
        return steered(bench, Steering(options.layer, vectors[options.layer], options.mode), choice)


def task_vectors(bench: Bench, dummies: int, mode: Mode) -> Tensor:
    """The mean residual after every layer at the end of context + dummy query, [layers, width]; for ``add``, less the
    mean without the context.
    """
    asked = bench.materials(dummies, "a task vector")
    there = bench.model.read(asked, bench.prefix).residual.mean(0).to(bench.model.device)
    if mode == "replace":
        return there
    return torch.sub(there, bench.model.read(asked).residual.mean(0).to(there.device))
