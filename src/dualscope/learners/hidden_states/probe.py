"""A linear classifier on frozen hidden states: the shallowest learner of all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from dualscope.core.options import Options
from dualscope.learners.hidden_states.task_vector import check_layer
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.reading.trace import is_in_file

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


class ProbeOptions(Options):
    steps: int = Field(100, ge=1, description="full-batch steps")
    lr: float = Field(1.0, gt=0, description="learning rate, on features whose mean squared norm is 1")
    layer: int = Field(-1, ge=-1, description="the layer whose classifier gives the predictions; -1: the last")


@LEARNERS.register("probe")
class Probe(Learner[ProbeOptions]):
    """Softmax regression by GD on each layer's residual stream; predictions only, the model does not change."""

    title = "a linear probe"
    colour = "@olive"
    options = ProbeOptions
    family = "shallow"
    changes_model = False

    def learn(self, bench: Bench, lr: float | None, options: ProbeOptions) -> Learned:
        if options.layer != -1:
            check_layer(bench.model, options.layer, self.name)
        lesson, frozen = bench.lesson, bench.zero_shot
        taught = lesson.training
        demonstrations = replace(
            lesson,
            queries=tuple(d.prompt for d in taught),
            labels=tuple(d.label_index for d in taught),
            query_ids=tuple(d.id for d in taught),
        )
        seen = bench.model.read(demonstrations)
        some = partial(
            softmax_regression, labels=seen.labels, classes=len(lesson.answers), steps=options.steps, lr=options.lr
        )
        features, asked = seen.residual.transpose(0, 1), frozen.residual.transpose(0, 1)
        # Layers do not know of each other: those that are kept in a file are looked at one after the other.
        step = 1 if is_in_file(asked) else len(asked)
        parts = [
            some(features[at : at + step].to(seen.device), queries=asked[at : at + step].to(seen.device))
            for at in range(0, len(asked), step)
        ]
        at_layer = torch.cat(parts).transpose(0, 1)  # [queries, layers, classes]
        trace = replace(frozen, label_logprobs=at_layer[:, options.layer], label_logprobs_at_layer=at_layer)
        return Learned(trace, predictions_only=True)


@torch.no_grad()
def softmax_regression(
    features: Tensor, labels: Tensor, queries: Tensor, classes: int, steps: int, lr: float
) -> Tensor:
    """Log-probabilities of the queries, [layers, queries, classes], by GD from zero weights in each layer.

    ``features`` is [layers, demonstrations, width], ``queries`` [layers, queries, width]. Both are centred and
    scaled by what the demonstrations show (mean, and mean squared norm 1), so that one rate suits every layer.

    >>> x = torch.tensor([[[1.0], [-1.0]]])
    >>> softmax_regression(x, torch.tensor([0, 1]), x, classes=2, steps=50, lr=1.0).argmax(-1)
    tensor([[0, 1]])
    """
    mean = features.mean(1, keepdim=True)
    scale = (features - mean).square().sum(-1).mean(1).sqrt()[:, None, None]
    scale = scale.masked_fill(scale == 0, 1.0)
    x, queries = (features - mean) / scale, (queries - mean) / scale
    weight = x.new_zeros(len(x), x.shape[-1], classes)
    bias = x.new_zeros(len(x), 1, classes)
    target = F.one_hot(labels, classes).to(x.dtype)
    for _ in range(steps):
        error = ((x @ weight + bias).softmax(-1) - target) / x.shape[1]
        weight -= lr * (x.mT @ error)
        bias -= lr * error.sum(1, keepdim=True)
    return (queries @ weight + bias).log_softmax(-1)
