"""Kernel regression (Han et al. 2023): a query takes the labels of the demonstrations that are like it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from dualscope.choosing.halving import Settings
from dualscope.choosing.spare_examples import asking_demonstrations
from dualscope.core.options import Options
from dualscope.learners.hidden_states.task_vector import check_layer
from dualscope.learners.learner import LEARNERS, Learned, Learner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace

TEMPERATURES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
FLOOR = 1e-6  # what is left to classes that no demonstration speaks for: their log is a number


class KernelOptions(Options):
    layer: int | None = Field(None, ge=0, description="whose residual is compared; none given: chosen")
    temperature: float | None = Field(
        None, ge=0, description="0: the nearest demonstration alone decides; none given: chosen"
    )


@LEARNERS.register("kernel")
class Kernel(Learner[KernelOptions]):
    """A softmax over the demonstrations by the likeness of their hidden states; predictions only."""

    title = "a kernel over the demonstrations"
    options = KernelOptions
    family = "shallow"
    changes_model = False

    open = ("layer", "temperature")

    def candidates(self, model: Model, options: KernelOptions) -> list[Settings]:
        if options.layer is not None:
            check_layer(model, options.layer, self.name)
        layers = range(model.n_layers) if options.layer is None else [options.layer]
        temperatures = TEMPERATURES if options.temperature is None else (options.temperature,)
        return [{"layer": layer, "temperature": t} for layer in layers for t in temperatures]

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: KernelOptions) -> Iterator[Tensor]:
        for found in candidates:  # on one bench: the demonstrations are read once
            yield self.learn(bench, None, options.model_copy(update=dict(found))).trace.label_logprobs

    def learn(self, bench: Bench, lr: float | None, options: KernelOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.layer is not None
        assert options.temperature is not None
        check_layer(bench.model, options.layer, self.name)
        seen: Trace = bench.once("demonstrations", lambda: bench.model.read(asking_demonstrations(bench.lesson)))
        scores = kernel_regression(
            seen.residual[:, options.layer].to(seen.device),
            seen.labels,
            bench.zero_shot.residual[:, options.layer].to(bench.zero_shot.device),
            classes=len(bench.lesson.answers),
            temperature=options.temperature,
        )
        trace = replace(bench.zero_shot, label_logprobs=scores, label_logprobs_at_layer=None, extras={})
        return Learned(trace, predictions_only=True, choice=choice)


def kernel_regression(features: Tensor, labels: Tensor, queries: Tensor, classes: int, temperature: float) -> Tensor:
    """Log-probabilities of the classes, [queries, classes]: log sum_i [y_i = class] exp(h . h_i / t).

    ``features`` [demonstrations, width] and ``queries`` [queries, width] are centred on the demonstrations and scaled
    to unit norm first.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> kernel_regression(x, torch.tensor([0, 1]), x, classes=2, temperature=0.1).argmax(-1)
    tensor([0, 1])
    """
    mean = features.mean(0)
    likeness = F.normalize(queries - mean, dim=-1) @ F.normalize(features - mean, dim=-1).T
    if temperature == 0:
        weights = F.one_hot(likeness.argmax(-1), len(labels)).to(likeness)
    else:
        weights = (likeness / temperature).softmax(-1)
    shares = weights @ F.one_hot(labels, classes).to(weights)
    return torch.log((1 - FLOOR) * shares + FLOOR / classes)
