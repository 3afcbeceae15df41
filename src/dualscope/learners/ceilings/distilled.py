"""Ceilings: a change of keys and values fitted on in-context learning's own traces of spare examples.

They ask whether a change of these weights, the same for all queries, could do what the context does at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dualscope.choosing.halving import HELD_OUT, Choice
from dualscope.core.options import Options
from dualscope.descent.delta import Delta
from dualscope.descent.loop import Adam
from dualscope.descent.parameters import wide
from dualscope.descent.trainable import weights_for
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.footprint import TrainingDemand
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.descent.trainable import Weights
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
CHECK, PATIENCE = 10, 5  # steps between looks at the examples held out, and looks without a gain
ENOUGH = 1e-4  # of the loss before the first step: so little left to gain shows in no explained share


class DistilledOptions(Options):
    lr: float | None = Field(None, gt=0, description="Adam's rate; none given: the best of four")
    fit: int = Field(64, ge=6, description="spare examples, a third of them held out to stop by")
    steps: int = Field(200, ge=1, description="at most")
    batch: int = Field(16, ge=1, description="examples a step")


# The loss on some of the fit examples, with the weights as they are.
Loss = Callable[["Model", "Lesson", Trace, Trace, Sequence[int]], Tensor]


class _Fitted(Learner[DistilledOptions]):
    """What the two share: the fit, and its rate."""

    role = "ceiling"
    options = DistilledOptions
    loss: Loss

    open = ("lr",)

    def training(self, options: DistilledOptions) -> TrainingDemand:
        return TrainingDemand(adam=True, queries=options.batch)

    def choose(self, benches: Sequence[Bench], options: DistilledOptions) -> Choice:
        curve = [
            {"lr": rate, "seed": bench.seed, HELD_OUT: self._fit(bench, options, rate)[1]}
            for bench in benches
            for rate in RATES
        ]
        best = min(RATES, key=lambda rate: sum(row[HELD_OUT] for row in curve if row["lr"] == rate))
        return Choice({"lr": best}, tuple(curve), options.fit, at_edge=best in (RATES[0], RATES[-1]))

    def learn(self, bench: Bench, lr: float | None, options: DistilledOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.lr is not None
        delta, _ = self._fit(bench, options, options.lr)
        return Learned(self.read(bench, delta, options), delta, choice=choice)

    def _fit(self, bench: Bench, options: DistilledOptions, lr: float) -> tuple[Delta, float]:
        key = (self.name, lr, options.fit, options.steps, options.batch)
        return bench.once(key, lambda: fitted(bench, type(self).loss, options, lr))


def fitted(bench: Bench, loss: Loss, options: DistilledOptions, lr: float) -> tuple[Delta, float]:
    """The change of keys and values with the lowest loss on the examples held out, and that loss.

    It is over after ``options.steps``, after `PATIENCE` looks without a gain, or when no more than `ENOUGH` is left.
    """
    asked = bench.materials(options.fit, "a fitted ceiling")
    icl: Trace = bench.once(("icl of spare", options.fit), lambda: bench.model.read(asked, bench.prefix))
    zero: Trace = bench.once(("zero-shot of spare", options.fit), lambda: bench.model.read(asked))
    model = bench.once("the model to fit with", lambda: no_wider_than_needed(bench.model))
    held = len(asked.queries) // 3
    out, own = range(held), np.arange(held, len(asked.queries))
    draw = np.random.default_rng([bench.seed, 8])
    adam = Adam()
    with weights_for(model, model.parts()) as weights:
        best, least, waited = _copy(weights), _value(loss, model, asked, icl, zero, out), 0
        enough = ENOUGH * least
        for step in range(options.steps):
            some = draw.choice(own, size=min(options.batch, len(own)), replace=False)
            with torch.enable_grad():
                gradient, _ = weights.gradient(loss(model, asked, icl, zero, some.tolist()))
            weights.move(adam.direction(gradient), -lr)
            if (step + 1) % CHECK == 0:
                now = _value(loss, model, asked, icl, zero, out)
                if now < least:
                    best, least, waited = _copy(weights), now, 0
                else:
                    waited += 1
                if waited == PATIENCE or least <= enough:
                    break
    return Delta({name: change.to(wide(bench.model.dtype)) for name, change in best.items()}), least


def no_wider_than_needed(model: Model) -> Model:
    """A copy in float32 of a model that is float64 on a CPU, else the model itself.

    Which examples a step draws matters far more to a fit than what float32 rounds, and it takes half the time.
    """
    if model.dtype != torch.float64 or [device.type for device in model.devices] != ["cpu"]:
        return model
    return type(model).from_hf(deepcopy(model.hf).float(), model.tokenizer, model.name)


@torch.no_grad()
def _value(loss: Loss, model: Model, asked: Lesson, icl: Trace, zero: Trace, members: Sequence[int]) -> float:
    return float(loss(model, asked, icl, zero, members))


def _copy(weights: Weights) -> Delta:
    return Delta({name: change.detach().clone() for name, change in weights.delta().items()})


def label_divergence(model: Model, asked: Lesson, icl: Trace, _zero: Trace, members: Sequence[int]) -> Tensor:
    """Mean KL(ICL's label distribution || the model's own)."""
    scores, _ = run(model, asked, members)
    target = icl.label_logprobs[list(members)].log_softmax(-1)
    return (target.exp() * (target - scores.log_softmax(-1))).sum(-1).mean()


def output_error(model: Model, asked: Lesson, icl: Trace, zero: Trace, members: Sequence[int]) -> Tensor:
    """Squared error of attn_out against ICL's, in each layer relative to zero-shot's: mean over layers and examples."""
    _, outputs = run(model, asked, members)
    wanted = icl.attn_out[list(members)].to(outputs.device)
    error = (outputs - wanted).square().sum(-1)
    scale = (zero.attn_out - icl.attn_out).square().sum(-1).mean(0).to(outputs.device)  # [layers]
    seen = scale > 0  # a layer that the context does not reach has nothing to align
    return (error[:, seen] / scale[seen]).mean()


@LEARNERS.register("kv-distilled")
class KvDistilled(_Fitted):
    """The change of keys and values that brings the label distribution nearest to ICL's, on spare examples."""

    loss = staticmethod(label_divergence)


@LEARNERS.register("kv-aligned")
class KvAligned(_Fitted):
    """The change of keys and values that brings the attention outputs nearest to ICL's, on spare examples."""

    loss = staticmethod(output_error)


def run(model: Model, asked: Lesson, members: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Label scores [members, classes] and attn_out [members, layers, width] without a context.

    All in one pass, because a gradient beside the weights is of the last one. Shorter sequences are filled up at their
    end, which nothing before it can see. Labels of several tokens are sequences of their own.
    """
    answers, longest = asked.answers, max(map(len, asked.answers))
    ends = [answer[:-1] for answer in answers] if longest > 1 else [()]
    rows = [[*asked.bos, *asked.queries[i], *end] for i in members for end in ends]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
    prompts = [len(asked.bos) + len(asked.queries[i]) - 1 for i in members for _ in ends]
    read = torch.tensor(prompts, device=model.device)
    only = read if longest == 1 else None  # of each sequence, the row that is asked for
    final = only if model.mixes_lengths else None
    session = Session(read=read, lead=len(asked.bos), unembed=only, final=final)
    with capturing(model, session):
        logits = model.forward(tokens)
    outputs = session.stack("attn_out", model.device).to(wide(logits.dtype))
    logprobs = logits.to(wide(logits.dtype)).log_softmax(-1)
    if longest == 1:
        return logprobs[:, 0, [answer[0] for answer in answers]], outputs
    scores = [
        logprobs[i, torch.arange(prompts[i], prompts[i] + len(answer)), list(answer)].mean()
        for i, answer in enumerate(answers * len(members))
    ]
    first = torch.arange(0, len(rows), len(answers), device=model.device)
    return torch.stack(scores).view(len(members), -1), outputs[first]
