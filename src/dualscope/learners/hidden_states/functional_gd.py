"""Gradient descent in function space, a step a layer, written where attention writes (Cheng et al. 2024).

The function f takes a text to the residual stream h where its label is predicted. In every layer it takes one step
against the loss of the demonstrations, as the frozen read-out has it:

    f <- f + r s sum_i k(h_i, .) g_i,    g_i = - d/dh_i (-log softmax(U h_i)[y_i]),  that is U^T (e_y - softmax(U h_i))
                                               through the final norm

k is a kernel of the layer, s the mean square of the demonstrations' residual stream there, so that one rate r suits
all layers. The step is added to attn_out: of the demonstrations too, each read by itself, so that the next layer's step
is taken where this one led. The model's weights never move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from dualscope.choosing.halving import RATES, Rounds, Settings
from dualscope.choosing.spare_examples import asking_demonstrations
from dualscope.core.options import Options
from dualscope.learners.hidden_states.task_vector import random_vector
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.architecture.parts import output_projection
from dualscope.models.capture.block_hooks import put, rows_of
from dualscope.models.capture.content_scores import QueriesAndKeys, content_scores
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.last_token import read_under_each
from dualscope.models.reading.memory import halving

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.capture.attention_kernel import Rules
    from dualscope.models.model import Model

RATE_GRID = tuple(float(f"{10 ** (-2 + k / 2):.3g}") for k in range(9))  # 0.01 .. 100, two a decade
TEMPERATURES = (0.03, 0.1, 0.3, 1.0)
Kernel = Literal["attention", "linear", "exp"]


class FunctionalOptions(Options):
    kernel: Kernel = Field(
        "attention",
        description="softmax of the layer's own scores, of its queries with the demonstrations' keys; the same "
        "scores as they are (linear); or exp(h_i.h_q / t) of residuals of length 1",
    )
    lr: float | None = Field(None, gt=0, description="learning rate; none given: chosen")
    temperature: float | None = Field(None, gt=0, description="t of the kernel exp; none given: chosen")


@dataclass(frozen=True)
class Point:
    """Texts as a layer's kernel sees them: [texts, ...]."""

    stream: Tensor  # the residual stream that enters the layer, [texts, width]
    query: Tensor | None = None  # [texts, heads, head_dim], where the kernel is attention's
    key: Tensor | None = None

    def at(self, rows: Tensor) -> Point:
        return Point(
            self.stream[rows],
            None if self.query is None else self.query[rows],
            None if self.key is None else self.key[rows],
        )

    @classmethod
    def together(cls, parts: Sequence[Point]) -> Point:
        def joined(name: str) -> Tensor | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.cat(values)

        stream = joined("stream")
        assert stream is not None
        return cls(stream, joined("query"), joined("key"))


@dataclass(frozen=True)
class LayerStep:
    """One layer's step: where the demonstrations are, and where each pulls the function to."""

    points: Point
    pulls: Tensor  # [demonstrations, width]: rate x s x g
    rules: Rules


@dataclass(frozen=True)
class FunctionalSteps:
    """A change of activations: in every layer attn_out gains the kernel's mean of the demonstrations' pulls."""

    kernel: Kernel
    temperature: float
    steps: list[LayerStep] = field(default_factory=list)  # from the first layer on

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return model.intervened(self)

    def randomised(self, seed: int, draw: int) -> FunctionalSteps:
        """Pulls in random directions, each as strong as the one that it replaces."""

        def like(pulls: Tensor, layer: int) -> Tensor:
            noise = random_vector(pulls.shape, seed, draw * 10_000 + layer).to(pulls)
            drawn: Tensor = F.normalize(noise, dim=-1) * pulls.norm(dim=-1, keepdim=True)
            return drawn

        steps = [replace(step, pulls=like(step.pulls, layer)) for layer, step in enumerate(self.steps)]
        return replace(self, steps=steps)

    def written(self, layer: int, asked: Point) -> Tensor:
        """What the layer's attention gains, [queries, width]."""
        step = self.steps[layer]
        weights = self.weights(step.points, asked, step.rules)
        gained: Tensor = weights @ step.pulls.to(weights)
        return gained

    def weights(self, points: Point, asked: Point, rules: Rules) -> Tensor:
        """The kernel between queries and demonstrations, [queries, demonstrations]."""
        if self.kernel == "exp":
            return exponential(asked.stream, points.stream, self.temperature)
        assert asked.query is not None
        assert points.key is not None
        scores = content_scores(asked.query, points.key.to(asked.query), rules)
        by_head = scores / len(points.key) if self.kernel == "linear" else scores.softmax(-1)
        over_heads: Tensor = by_head.mean(-2)
        return over_heads

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if session.answer is not None or layer >= len(self.steps):  # a label's own tokens are left to the model
            return
        seen = Seen(model, session, layer, self.kernel, stack)

        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            gained = self.written(layer, seen.taken())
            return added(output, gained, session)

        stack.callback(output_projection(model, layer).register_forward_hook(hook).remove)


class Seen:
    """A layer's texts as its kernel sees them, once its attention has run."""

    def __init__(self, model: Model, session: Session, layer: int, kernel: Kernel, stack: ExitStack) -> None:
        self.session, self.layer = session, layer
        self.heads = QueriesAndKeys(model, layer, stack) if kernel != "exp" else None
        self.stream: Tensor | None = None
        stack.callback(model.blocks[layer].register_forward_pre_hook(self._enter, with_kwargs=True).remove)

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stream = args[0] if args else kwargs["hidden_states"]

    @property
    def rules(self) -> Rules:
        """How the layer's attention weighs."""
        return self.session.rules[self.layer]

    def taken(self) -> Point:
        assert self.stream is not None
        assert self.session.acts is not None
        batch = len(self.session.query_ids)
        stream = rows_of(self.stream.view(batch, -1, self.stream.shape[-1]), self.session.acts)
        self.stream = None
        return Point(stream, *(self.heads.taken(batch, self.session.acts) if self.heads else (None, None)))


def added(output: Tensor, gained: Tensor, session: Session) -> Tensor:
    """An attention's output with something added at the read row of every query."""
    whole = output.view(len(session.query_ids), -1, output.shape[-1])
    return put(whole, session.acts, lambda rows: rows + gained.to(rows)).view(output.shape)


def exponential(queries: Tensor, points: Tensor, temperature: float) -> Tensor:
    """exp(h_i.h_q / t) of vectors of length 1, over the number of points; 1 / n where the two are the same.

    >>> exponential(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]]), temperature=1.0)
    tensor([[0.5000, 0.1839]])
    """
    likeness = F.normalize(queries, dim=-1) @ F.normalize(points, dim=-1).to(queries).T
    return ((likeness - 1) / temperature).exp() / len(points)


def pulls(model: Model, stream: Tensor, tokens: Tensor) -> Tensor:
    """Against the gradient of -log softmax(U h)[token] with respect to h: [texts, width], from [texts, width]."""
    with torch.enable_grad():
        stream = stream.detach().requires_grad_()
        logits = model.readout(stream)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(wide, tokens.to(wide.device), reduction="sum")
        return -torch.autograd.grad(loss, stream)[0]


@dataclass(frozen=True)
class Descending:
    """The steps in the making, while the demonstrations are read: the first layer without a step gets one.

    Where all of them stand in one batch, all layers get theirs in one pass.
    """

    found: FunctionalSteps
    rate: float
    taught: Mapping[str, int]  # the first token of each demonstration's label
    parts: dict[str, tuple[Point, Rules]] = field(default_factory=dict)  # of the layer that is next

    def attach(self, model: Model, session: Session, layer: int, stack: ExitStack) -> None:
        if session.answer is not None:
            return
        seen = Seen(model, session, layer, self.found.kernel, stack)

        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
            point = seen.taken()
            if layer == len(self.found.steps):
                for row, name in enumerate(session.query_ids):
                    self.parts[name] = point.at(torch.tensor([row], device=point.stream.device)), seen.rules
                if len(session.query_ids) == len(self.taught):
                    self.take(model)
            if layer < len(self.found.steps):
                return added(output, self.found.written(layer, point), session)
            return None

        stack.callback(output_projection(model, layer).register_forward_hook(hook).remove)

    def take(self, model: Model) -> None:
        """The step of the next layer, all demonstrations having been seen there."""
        point = Point.together([self.parts[name][0] for name in self.taught])
        (_, rules) = self.parts[next(iter(self.taught))]
        stream = point.stream.to(torch.promote_types(point.stream.dtype, torch.float32))
        scale = self.rate * stream.square().mean()
        found = pulls(model, point.stream, torch.tensor(list(self.taught.values())))
        self.found.steps.append(LayerStep(point, scale * found.to(stream), rules))
        self.parts.clear()


@torch.no_grad()
def functional_steps(bench: Bench, lr: float, kernel: Kernel, temperature: float = 1.0) -> FunctionalSteps:
    """All layers' steps on a bench's demonstrations, from the first one up."""
    model, asked = bench.model, asking_demonstrations(bench.lesson)
    first = {d.id: d.label[0] for d in bench.lesson.training}
    making = Descending(FunctionalSteps(kernel, temperature), lr, first)

    def run(batch: Batch) -> None:
        # Not a reading: nothing is unembedded but what the steps themselves ask for.
        names = tuple(asked.query_ids[i] for i in batch.queries)
        session = Session(acts=batch.prompt_end, query_ids=names, plain=model.in_other_order)
        with capturing(model, session):
            model.forward(batch.tokens, keep=1)
        model.check(session)

    with model.running(), model.intervened(making):
        while (before := len(making.found.steps)) < model.n_layers:
            for batch in batches_of(model, asked, None, None):
                list(halving(model, batch, run))
            if len(making.found.steps) == before:  # they did not fit into one batch
                making.take(model)
    return making.found


@LEARNERS.register("functional-gd")
class FunctionalGd(Learner[FunctionalOptions]):
    """A step of gradient descent in function space in every layer, from the demonstrations' own errors there."""

    title = "functional gradient descent"
    options = FunctionalOptions
    family = "shallow"

    open = ("lr", "temperature")

    def is_open(self, options: FunctionalOptions) -> bool:
        return options.lr is None or (options.kernel == "exp" and options.temperature is None)

    def rounds(self, options: FunctionalOptions) -> Rounds:
        return RATES

    def candidates(self, model: Model, options: FunctionalOptions) -> list[Settings]:
        rates = RATE_GRID if options.lr is None else (options.lr,)
        if options.kernel != "exp":
            return [{"lr": lr} for lr in rates]
        temperatures = TEMPERATURES if options.temperature is None else (options.temperature,)
        return [{"lr": lr, "temperature": t} for t in temperatures for lr in rates]

    def attempts(self, bench: Bench, candidates: Sequence[Settings], options: FunctionalOptions) -> Iterator[Tensor]:
        for one in candidates:
            found = self._steps(bench, options.model_copy(update=dict(one)))
            yield read_under_each(bench.model, bench.lesson, [(found,)])[0]

    def learn(self, bench: Bench, lr: float | None, options: FunctionalOptions) -> Learned:
        options, choice = bench.chosen(self, options)
        found = self._steps(bench, options)
        with found.applied(bench.model):
            trace = bench.model.read(bench.lesson, want=bench.read_want)
        return Learned(trace, found, choice=choice)

    def _steps(self, bench: Bench, options: FunctionalOptions) -> FunctionalSteps:
        assert options.lr is not None
        return functional_steps(bench, options.lr, options.kernel, options.temperature or 1.0)
