"""What a probe or a kernel answers, written where attention writes: shallow learners with attention outputs.

A probe (or a kernel) on the stream that enters a layer says how likely each label is. The layer's attn_out gains a step
towards that, as the frozen read-out has it:

    attn_out <- attn_out + r s g,    g = - d/dh sum_c p_c (-log softmax(U h)[c])

h is the query's stream there without any demonstration, p what the learner answers from it, s the mean square of the
queries' streams, so that one rate r suits all layers. Layer 0, which nothing stands before, is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from dualscope.choosing.halving import RATES, Rounds, Settings
from dualscope.choosing.spare_examples import asking_demonstrations
from dualscope.core.options import Options
from dualscope.learners.hidden_states.functional_gd import RATE_GRID, added
from dualscope.learners.hidden_states.kernel_regression import kernel_regression
from dualscope.learners.hidden_states.task_vector import random_vector
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.architecture.parts import output_projection
from dualscope.models.reading.last_token import read_under_each

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.capture.session import Session
    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace


class WrittenOptions(Options):
    of: Literal["probe", "kernel"] = Field("probe", description="whose answers are written")
    temperature: float = Field(0.1, ge=0, description="of the kernel")
    rate: float | None = Field(None, gt=0, description="how far the step goes; none given: chosen")


@dataclass(frozen=True)
class WrittenAnswers:
    """A change of activations: what attn_out gains at the read row of every query, by layer."""

    rows: dict[str, int]  # where each query stands in what is added
    gained: Tensor  # [queries, layers, width]

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return model.intervened(self)

    def randomised(self, seed: int, draw: int) -> WrittenAnswers:
        """Random directions, of every query and layer as long as what they replace."""
        noise = random_vector(self.gained.shape, seed, draw).to(self.gained)
        return replace(self, gained=F.normalize(noise, dim=-1) * self.gained.norm(dim=-1, keepdim=True))

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if session.answer is not None:  # a label's own tokens are left to the model
            return

        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            at = [self.rows[query] for query in session.query_ids]
            return added(output, self.gained[at, layer], session)

        stack.callback(output_projection(model, layer).register_forward_hook(hook).remove)


@LEARNERS.register("shallow-written")
class ShallowWritten(Learner[WrittenOptions]):
    """A probe's (or a kernel's) answers from every layer's stream, written by the attention of the layer above."""

    title = "a shallow learner's answers, written where attention writes"
    options = WrittenOptions
    family = "shallow"

    open = ("rate",)

    def rounds(self, options: WrittenOptions) -> Rounds:
        return RATES

    def candidates(self, model: Model, options: WrittenOptions) -> list[Settings]:
        return [{"rate": rate} for rate in RATE_GRID]

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: WrittenOptions) -> Iterator[Tensor]:
        whole = written_answers(bench, options)
        changes = [replace(whole, gained=one["rate"] * whole.gained) for one in candidates]
        yield from read_under_each(bench.model, bench.lesson, [(change,) for change in changes])

    def learn(self, bench: Bench, lr: float | None, options: WrittenOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        assert options.rate is not None
        whole = written_answers(bench, options)
        change = replace(whole, gained=options.rate * whole.gained)
        with change.applied(bench.model):
            trace = bench.model.read(bench.lesson, want=bench.read_want)
        return Learned(trace, change, choice=choice, of_queries=True)


@torch.no_grad()
def written_answers(bench: Bench, options: WrittenOptions) -> WrittenAnswers:
    """At a rate of 1."""
    model, lesson, frozen = bench.model, bench.lesson, bench.zero_shot
    tokens = torch.tensor([answer[0] for answer in lesson.answers], device=model.device)
    shares = answers_by_layer(bench, options).exp()
    gained = torch.zeros_like(frozen.residual, device=model.device)
    for layer in range(1, model.n_layers):
        stream = frozen.residual[:, layer - 1].to(model.device)
        gained[:, layer] = stream.square().mean() * towards(model, stream, tokens, shares[:, layer - 1])
    rows = {query: row for row, query in enumerate(lesson.query_ids)}
    return WrittenAnswers(rows, gained)


def answers_by_layer(bench: Bench, options: WrittenOptions) -> Tensor:
    """Log-probabilities of the labels from the stream after every layer, [queries, layers, classes]."""
    frozen = bench.zero_shot
    if options.of == "probe":
        found = bench.learned("probe").trace.label_logprobs_at_layer
        assert found is not None
        return found.to(bench.model.device)
    seen: Trace = bench.once("demonstrations", lambda: bench.model.read(asking_demonstrations(bench.lesson)))
    by_layer = [
        kernel_regression(
            seen.residual[:, layer].to(seen.device),
            seen.labels,
            frozen.residual[:, layer].to(frozen.device),
            classes=len(bench.lesson.answers),
            temperature=options.temperature,
        )
        for layer in range(bench.model.n_layers)
    ]
    return torch.stack(by_layer, 1)


def towards(model: Model, stream: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
    """Against the gradient of the cross-entropy of the labels' first tokens: [queries, width].

    ``stream`` [queries, width], ``tokens`` [classes], ``shares`` [queries, classes].
    """
    with torch.enable_grad():
        point = stream.to(model.dtype).detach().requires_grad_()
        logits = model.readout(point)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = -(shares.to(wide) * wide.log_softmax(-1)[:, tokens.to(wide.device)]).sum()
        return -torch.autograd.grad(loss, point)[0].to(stream)
