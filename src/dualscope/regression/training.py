"""Training of stacked copies: Adam is elementwise, so each copy trains as if it were alone. And training of
GPT-2 blocks on prompts of (x, y) pairs, with a curriculum: one way for every experiment that needs it.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dualscope.descent.cuda_graphs import CudaRecording, aside
from dualscope.regression.architectures.gpt2 import Gpt2Learner, Size, pair_tokens
from dualscope.regression.problems import FunctionClass, Prompts, draw_prompts, generators
from dualscope.regression.spectral import Block, SpectralAdam

# A training step recorded as a CUDA graph: a small transformer's kernels take longer to launch than to run.


Inputs = tuple[Tensor, ...]
WARM = 3  # steps before a recording: libraries, compilers and the optimiser set themselves up in them


class RecordedSteps:
    """``step(*inputs) -> losses`` as it is, or, after a few calls with inputs of one shape, its recording.

    A step must read nothing but its inputs and what stays in place (weights, the optimiser's state, a rate that is
    a tensor), and must not wait for the device.
    """

    def __init__(self, step: Callable[..., Tensor]) -> None:
        self.step = step
        self._refused = False
        self._stream: torch.cuda.Stream | None = None
        self._seen: dict[tuple[torch.Size, ...], int] = {}
        self._recordings: dict[tuple[torch.Size, ...], tuple[Inputs, CudaRecording[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        shapes = tuple(one.shape for one in inputs)
        if shapes not in self._recordings:
            self._seen[shapes] = self._seen.get(shapes, 0) + 1
            if self._seen[shapes] <= WARM or self._refused:
                return self._aside(*inputs)
            try:
                self._recordings[shapes] = self._recorded(inputs)
            except RuntimeError as error:
                warnings.warn(f"steps are not recorded, and take longer: {error}", stacklevel=2)
                self._refused = True
                return self._aside(*inputs)
        read, recording = self._recordings[shapes]
        for mine, new in zip(read, inputs, strict=True):
            mine.copy_(new)
        return recording.replay()

    def _aside(self, *inputs: Tensor) -> Tensor:
        """On one stream for all steps, since each stream has memory of its own."""
        self._stream = self._stream or torch.cuda.Stream()
        return aside(lambda: self.step(*inputs), self._stream)

    def _recorded(self, inputs: Inputs) -> tuple[Inputs, CudaRecording[Tensor]]:
        read = tuple(one.clone() for one in inputs)
        torch.cuda.synchronize()
        return read, CudaRecording(lambda: self.step(*read), "thread_local")


Advance = Callable[[int], None]
Measuring = Callable[[], dict[str, Tensor]]  # measures of the model as it is, each [copies]
CPU = torch.device("cpu")
SAVE_EVERY = 60.0  # seconds between checkpoints
REST = 0.1  # the last tenth of a training, at its last rate: whether the error rests can be seen there
AHEAD = 16  # steps whose tasks are drawn at once


def silent(_: int) -> None:
    """Progress that is not shown."""


@dataclass(frozen=True)
class Schedule:
    """How long, how fast. ``clip`` is the largest gradient norm of a copy; ``decay_to`` a last rate, reached
    along a cosine after ``warmup`` steps, and kept for the last part ``rest`` of training.

    With ``minutes`` the rate falls with the time that has passed where that is ahead of the steps, and
    training ends with it, so that a machine of unknown speed is used fully and never overrun.

    >>> [round(Schedule(steps=10, rate=1.0, warmup=2, decay_to=0.0).rate_at(s, s / 10), 2) for s in (0, 2, 10)]
    [0.5, 1.0, 0.0]
    >>> [round(Schedule(steps=10, rate=1.0, decay_to=0.1, rest=0.2).rate_at(s, s / 10), 2) for s in (0, 4, 8, 9)]
    [1.0, 0.55, 0.1, 0.1]
    """

    steps: int
    rate: float = 1e-3
    clip: float | None = None
    decay_to: float | None = None
    warmup: int = 0
    minutes: float | None = None
    beta2: float = 0.999  # Adam's
    rest: float = 0.0
    spectral: bool = False  # orthogonal steps for matrices: of a `Gpt2Learner` alone
    average: float = 0.0
    """With orthogonal steps: over what part of the steps so far the weights that are watched and kept are a mean."""

    def progress(self, step: int, seconds: float) -> float:
        """From 0 to 1, where training ends."""
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(step / self.steps, by_time)

    def rate_at(self, step: int, progress: float) -> float:
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.decay_to is None:
            return self.rate * warm
        start = self.warmup / self.steps
        along = min(1.0, max(0.0, (progress - start) / max(1e-9, 1 - self.rest - start)))
        return warm * (self.decay_to + (self.rate - self.decay_to) * 0.5 * (1 + math.cos(math.pi * along)))


@dataclass(frozen=True)
class Training:
    """What a training left beside the weights."""

    steps: int
    seconds: float
    log: list[dict[str, Any]]  # {"step": ..., measure: [a value a copy], ...}

    def curve(self, measure: str) -> dict[int, list[float]]:
        """step -> a value a copy."""
        return {line["step"]: line[measure] for line in self.log}


@dataclass(frozen=True)
class Workplace:
    """Where training happens, who watches, and where checkpoints lie."""

    device: torch.device = CPU
    advance: Advance = silent
    checkpoints: Path | None = None  # a folder; none are kept without one
    compiled: bool = False

    def of(self, name: str) -> "Workplace":
        """The same, with checkpoints of its own."""
        where = None if self.checkpoints is None else self.checkpoints / name
        return Workplace(self.device, self.advance, where, self.compiled)


def drawn_ahead(batch: int, draw: Callable[[int, int], tuple[Tensor, ...]]) -> Callable[[int], tuple[Tensor, ...]]:
    """``draw(step, tasks)`` gives tensors [copies, tasks, ...]; here for many steps at once, and handed out by step.

    A draw is many small kernels, which take as long for a few tasks as for many. What a step sees depends on the step
    alone.

    >>> take = drawn_ahead(2, lambda step, tasks: (step + torch.arange(tasks).unsqueeze(0),))
    >>> take(17)[0].tolist(), take(0)[0].tolist()
    ([[18, 19]], [[0, 1]])
    """
    latest: dict[int, tuple[Tensor, ...]] = {}

    def take(step: int) -> tuple[Tensor, ...]:
        first = step - step % AHEAD
        if first not in latest:
            latest.clear()
            latest[first] = draw(first, AHEAD * batch)
        start = (step - first) * batch
        return tuple(part[:, start : start + batch] for part in latest[first])

    return take


def train(
    model: nn.Module,
    draw: Callable[[int], tuple[Tensor, ...]],
    loss: Callable[..., Tensor],
    schedule: Schedule,
    place: Workplace = Workplace(),
    watch: Measuring | None = None,
    watch_every: int = 100,
) -> "Training":
    """Minimise ``loss(*draw(step))``, one value a copy ([copies]).

    ``draw`` must depend on the step alone, so that a resumed training sees what it would have seen. ``watch``
    is called before the first step, then every ``watch_every`` steps, and after the last. A checkpoint of the
    same schedule in ``place`` is resumed; Ctrl-C leaves one. On a GPU steps are recorded and replayed, in bfloat16
    where the loss is under autocast.
    """
    on_gpu = place.device.type == "cuda"
    rate: float | Tensor = torch.tensor(schedule.rate, device=place.device) if on_gpu else schedule.rate
    parameters = list(model.parameters())
    optimizer = _optimizer(model, schedule, rate, place)
    kept = _Kept(place.checkpoints, model, optimizer, schedule)
    step = kept.resume()
    place.advance(step)

    def update(*batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        losses = loss(*batch)
        losses.sum().backward()
        if schedule.clip is not None:
            clip_copies(parameters, schedule.clip)
        optimizer.step()
        return losses.detach()

    take: Callable[..., Tensor] = RecordedSteps(update) if on_gpu else update
    averaging = optimizer if isinstance(optimizer, SpectralAdam) else None

    def note(watching: Measuring) -> None:
        with averaging.averaged() if averaging else nullcontext():
            kept.note(step, watching())

    began = time.monotonic() - kept.seconds
    try:
        while True:
            if watch is not None and step % watch_every == 0:
                note(watch)
            if on_gpu and step % 20 == 0:
                torch.cuda.synchronize()  # the clock is of steps that were done, not only asked for
            seconds = time.monotonic() - began
            progress = schedule.progress(step, seconds)
            if progress >= 1:
                break
            _set_rate(optimizer, schedule.rate_at(step, progress))
            take(*draw(step))
            step += 1
            place.advance(1)
            kept.maybe_save(step, seconds)
    except KeyboardInterrupt:
        kept.save(step, time.monotonic() - began)
        raise
    if watch is not None and step % watch_every:
        note(watch)
    place.advance(schedule.steps - step)  # of a training that time ended
    seconds = time.monotonic() - began
    kept.save(step, seconds)
    if averaging:
        averaging.keep_average()
    return Training(step, seconds, kept.log)


def _optimizer(model: nn.Module, schedule: Schedule, rate: float | Tensor, place: Workplace) -> torch.optim.Optimizer:
    betas = (0.9, schedule.beta2)
    if schedule.spectral:
        (flat,) = model.parameters()
        blocks: list[Block] = model.matrices()  # type: ignore[operator]
        return SpectralAdam(flat, blocks, rate, betas, schedule.average, place.compiled)
    options: dict[str, Any] = {"fused": True, "capturable": True} if place.device.type == "cuda" else {"foreach": True}
    return torch.optim.Adam(model.parameters(), lr=rate, betas=betas, **options)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # where recorded steps read it
        else:
            group["lr"] = rate


class _Kept:
    """The checkpoints of one training, as ``dualscope train`` keeps them; nothing at all without a folder."""

    def __init__(
        self, folder: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule
    ) -> None:
        self.folder, self.model, self.optimizer, self.schedule = folder, model, optimizer, schedule
        self.seconds, self._last = 0.0, time.monotonic()
        self.log: list[dict[str, Any]] = []

    def note(self, step: int, measures: dict[str, Tensor]) -> None:
        """A line of the log; once a step, also after a resume."""
        if not any(line["step"] == step for line in self.log):
            self.log.append({"step": step} | {name: found.tolist() for name, found in measures.items()})

    def resume(self) -> int:
        """The step to go on from: 0 where there is no checkpoint, or one of another training."""
        if self.folder is None:
            return 0
        from dualscope.training.checkpoint import load_checkpoint, load_state

        state = load_state(self.folder)
        if state is None or state["settings"] != asdict(self.schedule):
            return 0
        load_checkpoint(self.folder, self.model, self.optimizer)
        self.seconds, self.log = float(state["seconds"]), list(state["log"])
        return int(state["step"])

    def maybe_save(self, step: int, seconds: float) -> None:
        if time.monotonic() - self._last > SAVE_EVERY:
            self.save(step, seconds)

    def save(self, step: int, seconds: float) -> None:
        if self.folder is None:
            return
        from dualscope.training.checkpoint import save_checkpoint

        state = {"step": step, "seconds": seconds, "log": self.log, "settings": asdict(self.schedule)}
        save_checkpoint(self.folder, self.model, self.optimizer, state)
        self._last = time.monotonic()


def clip_copies(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale the gradient of each copy (the first dimension of every parameter) to a norm of at most
    ``largest``.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
    factor = (largest / norm.sqrt().clamp(min=1e-30)).clamp(max=1)
    # A draw on which deep linear attention overflows teaches that copy nothing.
    factor = torch.where(norm.isfinite(), factor, 0)
    for gradient in gradients:
        shape = (-1, *[1] * (gradient.dim() - 1))
        gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(factor.view(shape))


ALL, LONGEST = "squared error, all lengths", "squared error, longest prompt"
WATCHED = 256  # prompts a seed
PROMPTS_REST = 0.25  # of a training at its last rate: more than the fifth over which its error must not fall
AVERAGED = 0.01  # of the steps so far are weights a mean: so few that a curve which still falls shows it


@dataclass(frozen=True)
class Curriculum:
    """Few inputs and short prompts first (after Garg et al.): more inputs in ``stages`` until step ``until``, and
    prompts of half the length until then. Few lengths are few recordings.

    >>> [Curriculum(until=90).at(step, d=20, points=41) for step in (0, 40, 89, 90)]
    [(2, 21), (10, 21), (18, 21), (20, 41)]
    """

    until: int = 0
    stages: int = 9
    start: float = 0.1  # share of the inputs at the beginning: with a quarter of 20 some seeds never leave the plateau

    def at(self, step: int, d: int, points: int) -> tuple[int, int]:
        """How many inputs are not zero, and how long prompts are."""
        if step >= self.until:
            return d, points
        share = self.start + (1 - self.start) * (step * self.stages // self.until) / self.stages
        return max(1, math.ceil(d * share)), max(2, math.ceil(points / 2))


@contextmanager
def fast(device: torch.device) -> Iterator[None]:
    """bfloat16 products on a GPU; the residual stream, norms and weights stay in float32."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
        yield


@dataclass(frozen=True)
class TrainedLearner:
    """A trained learner, how its training went, and where it began."""

    model: Gpt2Learner
    training: Training
    start: Tensor  # the weights before training, as ``model.flat``


def train_on_prompts(
    functions: FunctionClass,
    points: int,
    seeds: Sequence[int],
    size: Size,
    schedule: Schedule,
    batch: int,
    place: Workplace,
    curriculum: Curriculum = Curriculum(),
    attention: Mapping[str, Any] | None = None,
    watch_every: int = 100,
) -> TrainedLearner:
    """All seeds at once, on fresh prompts at every step; the squared error at every position is minimised."""
    model = Gpt2Learner(functions.d, points, seeds, size, attention).to(place.device)
    if place.compiled:
        model.compile_blocks()
    start = model.flat.detach().cpu().clone()
    shown = draw_prompts(functions, WATCHED, points, generators(seeds, 2, place.device))

    def draw(step: int, tasks: int) -> tuple[Tensor, ...]:
        dims, length = curriculum.at(step, functions.d, points)
        prompts = draw_prompts(functions, tasks, length, generators(seeds, 1, place.device, step), dims)
        return prompts.x, prompts.y

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with fast(place.device):
            guesses = model(x, y)
        found: Tensor = (guesses.float() - y).square().mean((1, 2))
        return found

    @torch.no_grad()
    def watch() -> dict[str, Tensor]:
        with fast(place.device):
            errors = (model(shown.x, shown.y).float() - shown.target).square().mean(1)
        return {ALL: errors.mean(-1), LONGEST: errors[:, -1]}

    # What the gradients were before in-context learning appears says little of those after: a short memory.
    quick_memory = replace(schedule, beta2=0.98, spectral=True, rest=PROMPTS_REST, average=AVERAGED)
    training = train(model, drawn_ahead(batch, draw), loss, quick_memory, place, watch, watch_every)
    return TrainedLearner(model.requires_grad_(False), training, start)


@torch.no_grad()
def guesses_of(model: Gpt2Learner, prompts: Prompts, at_once: int = 256) -> Tensor:
    """The guess of every y, in float32: [copies, tasks, points], on the CPU."""
    parts = [
        model(x, y).float().cpu() for x, y in zip(prompts.x.split(at_once, 1), prompts.y.split(at_once, 1), strict=True)
    ]
    return torch.cat(parts, 1)


@torch.no_grad()
def states_of(model: Gpt2Learner, prompts: Prompts, at_once: int = 256) -> list[Tensor]:
    """The residual stream at the token of every x, by layer (the first is the embedding): each [copies, tasks,
    points, width], on the CPU.
    """
    return _by_layer(model, prompts, lambda state: state[..., ::2, :], at_once)


@torch.no_grad()
def summed_up_states_of(model: Gpt2Learner, prompts: Prompts, at_once: int = 256) -> list[Tensor]:
    """The residual stream at the token of the last x, and its mean over the tokens of the examples' y, by layer: each
    [copies, tasks, 2 width], on the CPU. The last y, which is asked for, is not among them.
    """
    return _by_layer(
        model, prompts, lambda state: torch.cat([state[..., -2, :], state[..., 1:-1:2, :].mean(-2)], -1), at_once
    )


@torch.no_grad()
def all_states_of(model: Gpt2Learner, prompts: Prompts) -> Tensor:
    """The residual stream at every token but the last, which is the answer that is asked for: [layers, copies, tasks,
    tokens, width], where the learner is. The first layer is the embedding.
    """
    return torch.stack(model.hidden(pair_tokens(prompts.x, prompts.y), keep=True))[..., :-1, :]


def _by_layer(model: Gpt2Learner, prompts: Prompts, kept: Callable[[Tensor], Tensor], at_once: int) -> list[Tensor]:
    """What is ``kept`` of every layer's states [copies, tasks, tokens, width], some prompts at a time."""
    parts = []
    for x, y in zip(prompts.x.split(at_once, 1), prompts.y.split(at_once, 1), strict=True):
        parts.append([kept(state).float().cpu() for state in model.hidden(pair_tokens(x, y), keep=True)])
    return [torch.cat(layer, 1) for layer in zip(*parts, strict=True)]
