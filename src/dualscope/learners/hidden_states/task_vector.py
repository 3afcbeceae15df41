"""Task vectors (Hendel et al. 2023): the demonstrations are squeezed into one vector that the query then applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from dualscope.choosing.halving import Settings
from dualscope.core.options import Options
from dualscope.learners.hidden_states.steering import Mode, Steering, check_layer, steered, tried
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model


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
