"""Layer-causal gradient descent: no layer learns from what layers above it say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dualscope.choosing.spare_examples import ridge
from dualscope.core.errors import InputError
from dualscope.descent.layer_losses import BlockCall, SaidBy, block_calls, visiting
from dualscope.descent.loop import Adjust, Adjusted, Step, StepState, Taken, mean_gradient, stepping, take, unchanged
from dualscope.descent.parameters import Gradient, dense, layer_of
from dualscope.descent.samples import Objective, Sample
from dualscope.learners.gradient.descend import DescentOptions, descend, descend_draws
from dualscope.learners.learner import LEARNERS, Learned, LearnedDraws, Learner
from dualscope.models.capture.block_hooks import AfterAttention, first_of
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.memory import halving

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


# Shortcuts (Din et al. 2023): linear maps from each layer's residual stream to the last layer's, from spare texts.
#
# The unembedding is made for the last layer, and earlier ones may keep what they know in another basis. With the map
# before it a layer's own loss asks what the layer knows, and not how it says it.


TEXTS = 64  # spare examples, without their labels
TOKENS = 1500  # of them at most


@dataclass(frozen=True)
class Shortcut:
    """From one layer's stream to the last one's: there + (h - here) matrix^T."""

    here: Tensor  # [width], the mean of this layer's stream
    there: Tensor  # [width], that of the last layer's
    matrix: Tensor  # [width, width]

    def __call__(self, hidden: Tensor) -> Tensor:
        here, there, matrix = (tensor.to(hidden) for tensor in (self.here, self.there, self.matrix))
        found: Tensor = there + (hidden - here) @ matrix.T
        return found


def shortcuts_of(bench: Bench) -> list[Shortcut]:
    """One for every layer but the last, the same for all that is taught on a bench."""
    home = bench.unaltered
    return home.once("shortcuts", lambda: fitted_shortcuts(home.model, home.materials(TEXTS, "lcgd with shortcuts")))


@torch.no_grad()
def fitted_shortcuts(model: Model, asked: Lesson) -> list[Shortcut]:
    """Least squares on the streams of a lesson's queries at all their tokens."""
    streams = token_streams(model, asked)[:, :TOKENS]
    *earlier, last = streams
    return [_fitted(one, last) for one in earlier]


def _fitted(inputs: Tensor, targets: Tensor) -> Shortcut:
    here, there = inputs.mean(0), targets.mean(0)
    x, y = inputs - here, targets - there
    return Shortcut(here, there, y.T @ ridge(x, y) @ x)


def token_streams(model: Model, lesson: Lesson) -> Tensor:
    """Every layer's residual stream at every token of the queries' prompts, BOS left out: [layers, tokens, width]."""
    found: dict[int, list[Tensor]] = {}

    def run(batch: Batch) -> None:
        layers: list[list[Tensor]] = []

        def hook(_: nn.Module, __: Any, output: Any) -> None:
            hidden = first_of(output)
            hidden = hidden.to(model.device, torch.promote_types(hidden.dtype, torch.float32))
            layers.append(_own_tokens(hidden, batch, lesson))

        with ExitStack() as stack:
            for block in model.blocks:
                stack.callback(block.register_forward_hook(hook).remove)
            stack.enter_context(capturing(model, Session()))
            model.forward(batch.tokens, keep=1)
        for row, query in enumerate(batch.queries):
            found[query] = [layer[row] for layer in layers]

    with model.running():
        for batch in batches_of(model, lesson, None, None):
            list(halving(model, batch, run))
    by_layer = zip(*(found[query] for query in sorted(found)), strict=True)
    return torch.stack([torch.cat(layer) for layer in by_layer])


def _own_tokens(hidden: Tensor, batch: Batch, lesson: Lesson) -> list[Tensor]:
    """[batch, tokens, width] -> of each query its own prompt's."""
    ends: Sequence[int] = [batch.lead + len(lesson.queries[query]) for query in batch.queries]
    return [row[batch.lead : end] for row, end in zip(hidden, ends, strict=True)]


Schedule = Literal["parallel", "sequential", "greedy"]
L = TypeVar("L", bound="LocalOptions")
SETTLED = 0.01  # a greedy layer has learned what it can where a pass lowers its loss by less than this part
MOST_PASSES = 20


class LocalOptions(DescentOptions):
    """How a layer's own loss is made."""

    readout: Literal["block", "attention", "shortcut"] = Field(
        "block",
        description="what is unembedded: the block's output, the stream right after its attention, or the block's "
        "output taken to the last layer by a linear map (fitted on spare texts)",
    )
    space: Literal["vocabulary", "labels"] = Field(
        "vocabulary", description="cross-entropy over all tokens, or over those of the label words (label tokens only)"
    )


class LcgdOptions(LocalOptions):
    schedule: Schedule = Field(
        "parallel",
        description="all layers step at once, or each before the next one sees its output, or each learns all that it "
        "can before the next one begins (greedy)",
    )
    depth: int = Field(
        1, ge=1, description="how many layers down a layer's loss reaches, its own included; 1: no further"
    )
    granularity: Literal["demonstration", "token"] = Field("demonstration", description="what one step is taken on")

    @model_validator(mode="after")
    def _whole_batches_are_parallel(self) -> LcgdOptions:
        if self.full_batch and self.schedule != "parallel":
            raise ValueError(
                f"full_batch needs schedule: parallel, because a {self.schedule} layer steps at every sample"
            )
        if self.depth > 1 and self.schedule != "parallel":
            raise ValueError(
                f"depth: {self.depth} needs schedule: parallel, because layers learn from losses above them"
            )
        if self.epochs > 1 and self.schedule == "greedy":
            raise ValueError("schedule: greedy makes as many passes as a layer needs, so it takes no epochs")
        return self


@LEARNERS.register("lcgd")
class Lcgd(Learner[LcgdOptions]):
    """Every layer learns from its own loss alone: its output through the final norm and unembedding."""

    title = "layer-causal gradient descent"
    colour = "@vermilion"
    options = LcgdOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: LcgdOptions) -> Learned:
        return descend_locally(bench, self.given_lr(lr), options)

    def learn_draws(self, benches: Sequence[Bench], lr: float | None, options: LcgdOptions) -> LearnedDraws | None:
        return descend_locally_draws(benches, self.given_lr(lr), options)


def descend_locally(bench: Bench, lr: float, options: LocalOptions, adjust: Adjust = unchanged) -> Learned:
    options = _as_descent(options)
    by_token = isinstance(options, LcgdOptions) and options.granularity == "token"
    return descend(bench, bench.lesson.training, lr, options, step_of(bench, options), adjust, by_token=by_token)


def descend_locally_draws(
    benches: Sequence[Bench],
    lr: float,
    options: LocalOptions,
    adjust: Adjust = unchanged,
    measures: bool = False,
    reads: bool = True,
) -> LearnedDraws | None:
    """The same on several draws at once; one by one where each takes as many steps as it needs."""
    if isinstance(options, LcgdOptions) and options.schedule == "greedy":
        return None
    options = _as_descent(options)
    by_token = isinstance(options, LcgdOptions) and options.granularity == "token"
    step = step_of(benches[0], options)
    return descend_draws(benches, lr, options, step, adjust, by_token=by_token, measures=measures, reads=reads)


def _as_descent(options: L) -> L:
    """With what follows from them for the descent."""
    if options.space == "labels":
        options = options.model_copy(update={"loss": "label"})
    if isinstance(options, LcgdOptions) and options.schedule == "greedy":
        options = options.model_copy(update={"full_batch": True})  # a layer has to see all of them, pass by pass
    return options


def step_of(bench: Bench, options: LocalOptions) -> Step:
    """The step that the options ask for."""
    losses = LayerLosses.of(bench, options)
    if isinstance(options, LcgdOptions) and options.schedule == "greedy":
        return greedy_step(losses)
    if isinstance(options, LcgdOptions) and options.depth > 1:
        return deep_step(losses, options.depth)
    return lcgd_step(losses, sequential=isinstance(options, LcgdOptions) and options.schedule == "sequential")


@dataclass(frozen=True)
class LayerLosses:
    """How each layer's own loss is computed from what the layer says."""

    model: Model
    objective: Objective
    said_by: SaidBy
    shortcuts: Sequence[Shortcut] = ()

    @classmethod
    def of(cls, bench: Bench, options: LocalOptions) -> LayerLosses:
        labels = options.space == "labels"
        objective = Objective.of_labels(bench.lesson, bench.model.device) if labels else Objective()
        said_by: SaidBy = "attention" if options.readout == "attention" else "block"
        return cls(bench.model, objective, said_by, shortcuts_of(bench) if options.readout == "shortcut" else ())

    def loss(self, layer: int, said: Tensor, sample: Sample) -> Tensor:
        """``said`` is [sequences, tokens, width]."""
        hidden = sample.predicting(said)
        if layer < len(self.shortcuts):
            hidden = self.shortcuts[layer](hidden)
        return self.objective(self.model.readout(hidden), sample)


def lcgd_step(losses: LayerLosses, sequential: bool = False) -> Step:
    """One step of every layer on its own loss, in one forward pass."""
    model = losses.model

    def visit_all(state: StepState, sample: Sample, share: int, found: Gradient, taken: list[Taken]) -> None:
        weights, recorder = state.weights, state.recorder
        learning = {slot.layer for slot in weights.slots}
        # A layer may move as soon as its own loss is known, unless the step's size depends on other layers or samples.
        at_once = sequential or (share == 1 and state.adjust is unchanged)

        def visit(layer: int, said: Tensor) -> bool:
            if layer not in learning:
                recorder.note(sample, (), layer)
                return False
            loss = losses.loss(layer, said, sample)
            gradient, errors = weights.gradient(loss, layer, also=recorder.outputs(layer))
            recorder.note(sample, [error / share for error in errors], layer)
            if at_once:
                taken.append(take(state, gradient))
            else:
                found.update(gradient)
            return sequential

        with torch.enable_grad(), visiting(model, losses.said_by, visit):
            model.forward(sample.inputs, keep=1)

    def step(state: StepState, batch: Sequence[Sample]) -> Taken:
        taken: list[Taken] = []

        def gradient(sample: Sample) -> Gradient:
            found: Gradient = {}
            visit_all(state, sample, len(batch), found, taken)
            return found

        total = mean_gradient(state.weights, batch, gradient)
        return sum(taken[1:], taken[0]) if taken else take(state, total)

    return step


def deep_step(losses: LayerLosses, depth: int) -> Step:
    """One step of every layer on the sum of its own loss and those of the ``depth`` - 1 layers above it.

    The loss of a layer reaches so many layers down, as that of a model which is cut short behind it would: of all
    layers it is gradient descent on all such models at once.
    """
    model = losses.model

    @stepping
    @torch.enable_grad()
    def step(state: StepState, sample: Sample, batch: int) -> Gradient:
        weights, recorder = state.weights, state.recorder
        learning = {slot.layer for slot in weights.slots}
        by_layer: list[Tensor] = []

        def visit(layer: int, said: Tensor) -> bool:
            by_layer.append(losses.loss(layer, said, sample))
            return False

        with visiting(model, losses.said_by, visit, one_graph=True):
            model.forward(sample.inputs, keep=1)
        found: Gradient = {}
        for layer in range(model.n_layers):
            if layer not in learning:
                recorder.note(sample, (), layer)
                continue
            reaching = by_layer[layer : layer + depth]
            loss = torch.stack([one.to(model.device) for one in reaching]).sum()
            gradient, errors = weights.gradient(loss, layer, also=recorder.outputs(layer), keeps_graph=True)
            recorder.note(sample, [error / batch for error in errors], layer)
            found.update(gradient)
        return found

    return step


def greedy_step(losses: LayerLosses) -> Step:
    """All of the learning as one step: from the first layer up, each makes passes over all demonstrations until its
    loss falls no further, and only then does the next layer see what it says (Bengio et al. 2006).
    """
    model = losses.model

    def step(state: StepState, batch: Sequence[Sample]) -> Taken:
        if state.recorder.dual:
            raise InputError("lcgd with schedule: greedy has no dual form: its layers take different numbers of steps")
        learning = {slot.layer for slot in state.weights.slots}
        calls = [block_calls(model, sample.inputs) for sample in batch]
        taken: list[Taken] = []
        for layer in range(model.n_layers):
            given = [one[layer] for one in calls]
            if layer in learning:
                taken += learn_greedily(losses, state, batch, given)
            if layer + 1 < model.n_layers:
                with torch.no_grad():
                    for one, call in zip(calls, given, strict=True):
                        one[layer + 1] = one[layer + 1].with_hidden(call.run(model))
        return sum(taken[1:], taken[0])

    return step


def learn_greedily(
    losses: LayerLosses, state: StepState, batch: Sequence[Sample], given: Sequence[BlockCall]
) -> list[Taken]:
    """One layer's passes over the demonstrations, of which it is given what the layers below hand on."""
    model, weights, recorder = losses.model, state.weights, state.recorder
    layer, taken, before = given[0].layer, list[Taken](), math.inf
    with ExitStack() as stack:
        middle = None
        if losses.said_by == "attention":
            middle = AfterAttention(model.blocks[layer], model.attentions[layer], stack)
        for _ in range(MOST_PASSES):
            total = 0.0
            for sample, call in zip(batch, given, strict=True):
                with torch.enable_grad():
                    loss = losses.loss(layer, call.said(model, middle), sample)
                gradient, _ = weights.gradient(loss, layer)
                recorder.note(sample, (), layer)
                taken.append(take(state, gradient))
                total += float(loss.detach())
            if not total < (1 - SETTLED) * before:
                break
            before = total
    return taken


# Layer-causal gradient descent with clipped gradients.


Clip = Literal["global-l2", "linf", "elementwise"]


class ClippedOptions(LcgdOptions):
    clip: Clip = Field("global-l2", description="rescale by the norm over all layers, by the largest entry, or cut")
    threshold: float = Field(12.0, gt=0, description="the largest norm (or entry) that is let through")

    @model_validator(mode="after")
    def _global_clips_are_parallel(self) -> ClippedOptions:
        if self.schedule != "parallel" and self.clip != "elementwise":
            raise ValueError(f"clip: {self.clip} looks at all layers at once, so it needs schedule: parallel")
        return self


@LEARNERS.register("lcgd-clipped")
class LcgdClipped(Learner[ClippedOptions]):
    """LCGD whose gradient is clipped at every step."""

    title = "layer-causal gradient descent, clipped"
    colour = "@orange"
    options = ClippedOptions
    family = "gradient"
    needs_lr = True

    def learn(self, bench: Bench, lr: float | None, options: ClippedOptions) -> Learned:
        clip = clipper(options.clip, options.threshold)
        return descend_locally(bench, self.given_lr(lr), options, clip)


def clipper(clip: Clip, threshold: float) -> Adjust:
    """Nothing here waits for the device: whether a step was cut is counted at the end."""

    def adjust(gradient: Gradient, _step: int, norms: Tensor) -> Adjusted:
        if clip == "elementwise":
            cut = torch.zeros_like(norms)
            whole = dense(gradient)
            for name, value in whole.items():
                layer = layer_of(name)
                assert layer is not None
                cut[layer] += (value.abs() > threshold).any().to(cut.device)
            clipped: Gradient = {name: value.clamp(-threshold, threshold) for name, value in whole.items()}
            return Adjusted(clipped, cut=True, clipped=(cut > 0).to(norms.dtype))
        if clip == "global-l2":
            size = norms.norm()
        else:
            largest = [value.abs().max().to(norms) for value in dense(gradient).values()]
            size = torch.stack(largest).max()
        factor = (threshold / size).clamp(max=1.0)
        return Adjusted(gradient, factor.expand_as(norms), clipped=(factor < 1).to(norms.dtype).expand_as(norms))

    return adjust
