"""A vector put into the residual stream where the label is predicted: what task and function vectors do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from dualscope.choosing.halving import Choice
from dualscope.core.errors import InputError
from dualscope.learners.learner import Learned
from dualscope.models.capture.activation_edits import OnResidual
from dualscope.models.reading.last_token import read_under_each

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model

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
