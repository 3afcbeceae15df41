"""Gradient descent on the demonstrations: the options and the run that all gradient learners share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd import forward_ad

from dualscope.core.errors import InputError, is_out_of_memory
from dualscope.core.options import MOST_EPOCHS, Options
from dualscope.descent.changes_of_draws import DrawsBeside, DrawsTangent, WholeDraws, is_known_whole
from dualscope.descent.cuda_graphs import replayed
from dualscope.descent.dual_records import Recorder
from dualscope.descent.loop import Adam, Adjust, Step, StepState, Taken, log_of, unchanged
from dualscope.descent.parameters import Slot, Whole
from dualscope.descent.samples import (
    MemoryMode,
    Sample,
    SideBySide,
    checkpointed,
    memory_modes,
    ordered,
    samples,
    side_by_side,
)
from dualscope.descent.trainable import weights_for
from dualscope.learners.learner import Learned, LearnedDraws
from dualscope.models.architecture.parts import Part
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading import footprint
from dualscope.models.reading.memory import release
from dualscope.models.reading.trace import Trace

if TYPE_CHECKING:
    from dualscope.descent.dual_records import Log
    from dualscope.descent.trainable import Weights
    from dualscope.learners.bench import Bench
    from dualscope.models.architecture.parts import Qkv
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import DemonstrationTokens, Lesson


# Reading a model that is linearised in its weights.


def linearised(value: Tensor) -> Tensor:
    """f + J.delta, from a tensor that carries its derivative; a tensor that carries none does not change."""
    primal, tangent = forward_ad.unpack_dual(value)
    found: Tensor = primal if tangent is None else primal + tangent
    return found


@torch.no_grad()
def read_along(weights: Weights, lesson: Lesson, zero_shot: Trace, want: frozenset[str] = frozenset()) -> Trace:
    """The trace of f + J.delta: scores and outputs linearised, and probabilities of the linearised logits.

    What metrics take differences of is the zero-shot trace that is given plus J.delta, in float64: the two passes round
    differently, and a small tangent would be lost in that.
    """
    # Attention is the plain one, because fused kernels have no forward-mode derivative.
    model = weights.model
    with weights.along_change():
        # Logits are linearised before the softmax over the vocabulary, which would otherwise be linearised too.
        return _along(model.read(lesson, want=want, plain=True, logits_as=linearised), zero_shot)


@torch.no_grad()
def read_draws_along(weights: DrawsTangent, lesson: Lesson, zero_shot: Trace) -> list[Trace]:
    """The same of every draw, along its own change."""
    with weights.along_change():
        traces = weights.model.read_draws(lesson, weights.draws, plain=True, logits_as=linearised)
        return [_along(trace, zero_shot) for trace in traces]


def _along(trace: Trace, zero_shot: Trace) -> Trace:
    return replace(
        trace.map(linearised),
        attn_out=_plus(zero_shot.attn_out, trace.attn_out),
        attn_scores=_plus(zero_shot.attn_scores, trace.attn_scores),
        residual=_plus(zero_shot.residual, trace.residual),
    )


def _plus(start: Tensor, carrying: Tensor) -> Tensor:
    tangent = forward_ad.unpack_dual(carrying).tangent
    wide = torch.float32 if start.device.type == "mps" else torch.float64  # MPS has no float64
    start = start.to(carrying.device, wide)  # it may be kept in a file
    return start if tangent is None else start + tangent.to(wide)


READ_TWICE = "the model is large: for the signal to noise it was read again, not trained again"


class DescentOptions(Options):
    """What every gradient learner lets you choose. The defaults are the papers'."""

    layers: tuple[int, ...] | None = Field(None, min_length=1, description="the layers that learn; none given: all")
    epochs: int = Field(1, ge=1, le=MOST_EPOCHS, description="passes over the demonstrations")
    full_batch: bool = Field(False, description="one step an epoch, on the mean over the demonstrations")
    order: int = Field(0, ge=0, description="0: the episode's own order; k: its k-th permutation")
    loss: Literal["all", "label"] = Field("all", description="the tokens of a demonstration that count")
    parameters: Literal["kv", "k", "v"] = Field("kv", description="key or value projections, or both")
    biases: bool = Field(True, description="whether the projections' biases learn too")

    def slots(self, model: Model) -> list[Slot]:
        if self.layers is not None and (wrong := [n for n in self.layers if not 0 <= n < model.n_layers]):
            raise InputError(f"layers: {model.name} has layers 0 to {model.n_layers - 1}; found {wrong}")
        if self.layers is not None and len(set(self.layers)) < len(self.layers):
            raise InputError(f"layers: each is named once; found {list(self.layers)}")
        chosen: dict[str, tuple[Qkv, ...]] = {"kv": ("key", "value"), "k": ("key",), "v": ("value",)}
        roles = chosen[self.parameters]
        return [part for part in model.parts(self.layers, roles) if self.biases or part.kind == "weight"]


@dataclass(frozen=True)
class Descent:
    """How a gradient learner goes about it: everything that a run of it needs besides the bench."""

    training: Sequence[DemonstrationTokens]
    lr: float
    options: DescentOptions
    step: Step
    adjust: Adjust = unchanged
    slots: Sequence[Slot] | None = None
    by_token: bool = False
    tangent: bool = False

    @contextmanager
    def run(self, bench: Bench, want: frozenset[str]) -> Iterator[tuple[Weights, Log, tuple[str, ...]]]:
        """Train on the demonstrations; inside, the weights are moved. Afterwards they are as before.

        Gives the weights, how the training went, and what was given up because memory was short.
        """
        model, slots = bench.model, self._slots(bench.model)
        learning = frozenset(
            (part.layer, part.role)
            for part in model.parts()
            if any(slot in (part, Whole(part.parameter)) for slot in slots) and part.kind == "weight"
        )
        with weights_for(model, slots, self.tangent) as weights:
            yield (weights, *self._train(weights, self.batches(bench, self.training, model.device), want, learning))

    @contextmanager
    def run_draws(
        self, benches: Sequence[Bench], batches: Sequence[Sequence[SideBySide]], measures: bool
    ) -> Iterator[tuple[DrawsBeside, Log, tuple[str, ...]]]:
        """The same for several draws at once: ``batches`` are theirs, side by side."""
        model = benches[0].model
        slots = self._slots(model)
        parts = all(isinstance(slot, Part) for slot in slots)
        kind = DrawsTangent if self.tangent else DrawsBeside if parts else WholeDraws
        with kind(model, slots, len(benches), measures) as weights:
            yield weights, *self._train(weights, batches, frozenset(), frozenset())

    def _slots(self, model: Model) -> Sequence[Slot]:
        return self.options.slots(model) if self.slots is None else self.slots

    def _train(
        self,
        weights: Weights,
        batches: Sequence[Sequence[Sample]],
        want: frozenset[str],
        learning: frozenset[tuple[int, str]],
    ) -> tuple[Log, tuple[str, ...]]:
        """How the training went, and what was given up."""
        model, given_up = weights.model, list[str]()
        for mode in memory_modes(model, batches, self.tangent):
            session = Session(plain=self.tangent, want=frozenset({"queries"} if "kendall" in want else ()))
            recorder = Recorder(model, session, "kendall" in want, "dual" in want, learning)
            try:
                log = log_of(weights, self._take_steps(weights, recorder, batches, mode), recorder)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or mode.last:
                    raise
            weights.reset()
            release(model.device)
            given_up.append(mode.given_up)
        return log, tuple(given_up)

    def batches(
        self, bench: Bench, training: Sequence[DemonstrationTokens], device: torch.device
    ) -> list[list[Sample]]:
        """The training sequences of every step of one epoch."""
        lesson, options = bench.lesson, self.options
        sequences = samples(training, lesson.bos, device, options.loss)
        order = ordered(len(sequences), options.order or _own_order(lesson), lesson.episode.seed)
        batches = [[sequences[i]] for i in order]
        if self.by_token:
            batches = [[one] for batch in batches for one in batch[0].by_token()]
        if options.full_batch:
            batches = [[sample for batch in batches for sample in batch]]
        return batches

    def _take_steps(
        self, weights: Weights, recorder: Recorder, batches: Sequence[Sequence[Sample]], mode: MemoryMode
    ) -> list[Taken]:
        """Recorded graphs, and the memory they hold, go when this returns: before the queries are read."""
        epochs, taken = self.options.epochs, list[Taken]()
        with ExitStack() as stack:
            if isinstance(self.adjust, Adam):  # what it keeps is of one run, and larger than the change
                stack.callback(self.adjust.forget)
            stack.enter_context(capturing(weights.model, recorder.session))
            if recorder.on:
                stack.enter_context(recorder.watching())
            if mode.checkpointed:
                stack.enter_context(checkpointed(weights.model))
            step = replayed(self.step, batches, epochs) if mode.recorded else self.step
            for batch in [*batches] * epochs:
                taken.append(step(StepState(weights, recorder, self.lr, len(taken), self.adjust), batch))
        return taken


def _own_order(lesson: Lesson) -> int:
    """Which permutation of the context's order gradient learners have for themselves; 0: none."""
    order = lesson.episode.order
    return order if lesson.gd_order == "own" and isinstance(order, int) else 0


def descend(
    bench: Bench,
    training: Sequence[DemonstrationTokens],
    lr: float,
    options: DescentOptions,
    step: Step,
    adjust: Adjust = unchanged,
    slots: Sequence[Slot] | None = None,
    by_token: bool = False,
    tangent: bool = False,
) -> Learned:
    """Train on the demonstrations, read the queries with the weights moved, and put the weights back."""
    model, lesson = bench.model, bench.lesson
    descent = Descent(training, lr, options, step, adjust, slots, by_token, tangent)
    with descent.run(bench, bench.want) as (weights, log, given_up):
        delta = weights.delta()
        if tangent:
            trace = read_along(weights, lesson, bench.zero_shot, bench.read_want)
        else:
            trace = model.read(lesson, want=bench.read_want)

    def again(few: Lesson) -> Trace:
        """The training too: where it is sensitive, rounding in a step reaches further than in any reading."""
        with descent.run(bench, frozenset()) as (weights, _, _):
            return read_along(weights, few, bench.zero_shot_again) if tangent else model.read(few)

    def along(few: Lesson) -> Trace:
        """The linearised model is no change of weights, so reading it again takes its own way."""
        with weights_for(model, delta.slots(model), tangent=True) as weights:
            weights.changes.update(delta)
            return read_along(weights, few, bench.zero_shot_again)

    # In float64 training again is never far, and the time is saved; a large model has no room for a second change.
    exact = model.dtype == torch.float64
    large = sum(weight.numel() for weight in model.hf.parameters()) > footprint.TRAINED_TWICE
    if large and not exact:
        given_up = (*given_up, READ_TWICE)
    once_more = (along if tangent else None) if exact or large else again
    return Learned(trace, delta, log, again=once_more, notes=given_up)


def descend_draws(
    benches: Sequence[Bench],
    lr: float,
    options: DescentOptions,
    step: Step,
    adjust: Adjust = unchanged,
    *,
    slots: Sequence[Slot] | None = None,
    by_token: bool = False,
    measures: bool = False,
    reads: bool = True,
    tangent: bool = False,
) -> LearnedDraws | None:
    """Train on the demonstrations of several draws at once, and read the queries; None where one by one is the way.

    The weights are shared by all draws, and each draw's change acts beside them. ``measures``: the log says how large
    steps were. Without ``reads`` there is no trace.
    """
    model = benches[0].model
    descent = Descent((), lr, options, step, adjust, slots, by_token, tangent)
    drawn = [descent.batches(bench, bench.lesson.training, torch.device("cpu")) for bench in benches]
    batches = side_by_side(drawn, model.device)
    if batches is None or not model.takes_draws or (slots is not None and not is_known_whole(model)):
        return None
    with descent.run_draws(benches, batches, measures or adjust is not unchanged) as (weights, log, given_up):
        traces: Sequence[Trace] = ()
        if reads and isinstance(weights, DrawsTangent):
            traces = read_draws_along(weights, benches[0].lesson, benches[0].zero_shot)
        elif reads:
            traces = model.read_draws(benches[0].lesson, len(benches))
        change = weights.of_draws()
    return LearnedDraws(tuple(traces), change, log, given_up)
