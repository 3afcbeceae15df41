"""Demonstrations as training sequences, and the loss on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from dualscope.models.model import Model
    from dualscope.tasks.lesson import DemonstrationTokens, Lesson


@dataclass(frozen=True)
class Sample:
    """One training sequence: BOS, prompt, label. Tokens from ``first`` on are predicted and count in the loss."""

    index: int  # which demonstration
    tokens: Tensor  # [tokens]
    first: int
    own: int  # rows from here on are recorded, where records are asked for: not BOS

    @property
    def rows(self) -> slice:
        """The rows whose next token is predicted."""
        return slice(self.first - 1, len(self.tokens) - 1)

    @property
    def targets(self) -> Tensor:
        return self.tokens[self.first :]

    @property
    def shares(self) -> Tensor | None:
        """How much each predicted token counts; None: all the same."""
        return None

    @property
    def width(self) -> int:
        """Of the sequence, in tokens."""
        return self.tokens.shape[-1]

    @property
    def inputs(self) -> Tensor:
        """What the model is given: [sequences, tokens]."""
        return self.tokens[None]

    def predicting(self, values: Tensor) -> Tensor:
        """Of [sequences, tokens, ...] the rows whose next token is predicted, one for each target."""
        return values[0, self.rows]

    def filled(self, width: int) -> Filled:
        """Room for this sequence, or any that is not longer than ``width``."""
        empty = torch.zeros(width, dtype=self.tokens.dtype, device=self.tokens.device)
        return Filled(0, empty, 1, 0, torch.zeros_like(empty), torch.zeros(width, device=empty.device))

    def by_token(self) -> list[Sample]:
        """The same as one sequence for every token that is predicted."""
        return [replace(self, tokens=self.tokens[: t + 1], first=t, own=t) for t in range(self.first, len(self.tokens))]


@dataclass(frozen=True)
class Filled(Sample):
    """A sequence of fixed width in tensors that are written over; what fills it up counts nothing in the loss."""

    wanted: Tensor  # [width]: what each row predicts
    weights: Tensor  # [width]: how much that counts

    @property
    def rows(self) -> slice:
        return slice(None)

    @property
    def targets(self) -> Tensor:
        return self.wanted

    @property
    def shares(self) -> Tensor:
        return self.weights

    def become(self, sample: Sample) -> None:
        for tensor in (self.tokens, self.wanted, self.weights):
            tensor.zero_()
        self.tokens[: len(sample.tokens)] = sample.tokens
        self.wanted[sample.rows] = sample.targets
        self.weights[sample.rows] = 1 / len(sample.targets)


@dataclass(frozen=True)
class SideBySide(Filled):
    """One sequence a draw, to be learned from at once: filled up at their ends to one width; all is [draws, width].

    What fills a sequence up counts nothing in the loss, and nothing before can see it. The loss is the sum over the
    draws, so that the gradient of a draw's own weights is that of its own loss.
    """

    @classmethod
    def of(cls, drawn: Sequence[Sample], device: torch.device) -> SideBySide:
        """Of the same step of every draw, put together where they are and then taken to the device at once.

        Without each sequence's last token: it predicts nothing, and nothing before can see it.
        """
        shape = len(drawn), max(one.width for one in drawn) - 1
        tokens, wanted = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        weights = torch.zeros(shape, dtype=torch.float64)
        for row, one in enumerate(drawn):
            tokens[row, : one.width - 1] = one.tokens[:-1]
            wanted[row, one.rows] = one.targets
            weights[row, one.rows] = 1 / len(one.targets)
        if device.type == "mps":  # it has no float64
            weights = weights.float()
        first = drawn[0]
        return cls(first.index, tokens.to(device), first.first, first.own, wanted.to(device), weights.to(device))

    @property
    def targets(self) -> Tensor:
        return self.wanted.flatten()

    @property
    def shares(self) -> Tensor:
        return self.weights.flatten()

    @property
    def inputs(self) -> Tensor:
        return self.tokens

    def predicting(self, values: Tensor) -> Tensor:
        return values.flatten(0, 1)

    def filled(self, width: int) -> SideBySide:
        """Room for these sequences, or any that are not longer than ``width``."""
        empty = self.tokens.new_zeros(len(self.tokens), width)
        return replace(self, tokens=empty, wanted=empty.clone(), weights=self.weights.new_zeros(empty.shape))

    def become(self, sample: Sample) -> None:
        assert isinstance(sample, SideBySide)
        for own, other in ((self.tokens, sample.tokens), (self.wanted, sample.wanted), (self.weights, sample.weights)):
            own.zero_()
            own[:, : sample.width] = other


def side_by_side(drawn: Sequence[Sequence[Sequence[Sample]]], device: torch.device) -> list[list[SideBySide]] | None:
    """The batches of all steps, from each draw's own; None where draws take steps of other sizes, or other many."""
    shapes = {tuple(len(batch) for batch in batches) for batches in drawn}
    if len(shapes) > 1:
        return None
    steps = zip(*drawn, strict=True)
    return [[SideBySide.of(some, device) for some in zip(*batches, strict=True)] for batches in steps]


def samples(
    training: Sequence[DemonstrationTokens],
    bos: tuple[int, ...],
    device: torch.device,
    loss: Literal["all", "label"] = "all",
) -> list[Sample]:
    found = []
    for index, demonstration in enumerate(training):
        tokens = (*bos, *demonstration.prompt, *demonstration.label)
        label = len(tokens) - len(demonstration.label)
        # Nothing predicts the very first token, so without BOS it does not count.
        first = label if loss == "label" else max(len(bos), 1)
        found.append(Sample(index, torch.tensor(tokens, device=device), first, len(bos)))
    return found


def ordered(n: int, order: int, seed: int) -> list[int]:
    """The order of the demonstrations: 0 is the episode's own, k > 0 the k-th permutation of it.

    >>> ordered(3, 0, seed=5)
    [0, 1, 2]
    >>> sorted(ordered(3, 1, seed=5))
    [0, 1, 2]
    """
    if order == 0:
        return list(range(n))
    return [int(i) for i in np.random.default_rng([seed, 2, order]).permutation(n)]


@dataclass(frozen=True)
class Objective:
    """Mean cross-entropy of the predicted tokens, over the vocabulary or over the tokens of the label words."""

    among: Tensor | None = None  # [label tokens], sorted; None: the whole vocabulary

    def __call__(self, logits: Tensor, sample: Sample) -> Tensor:
        """``logits`` are those of the sample's rows."""
        targets = sample.targets
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        if self.among is not None:
            # where a token that does not count is none of these, any will do
            found = torch.searchsorted(self.among, targets).clamp(max=len(self.among) - 1)
            logits, targets = logits[:, self.among], found
        if sample.shares is None:
            return F.cross_entropy(logits, targets)
        return F.cross_entropy(logits, targets, reduction="none") @ sample.shares.to(logits.dtype)

    @classmethod
    def of_labels(cls, lesson: Lesson, device: torch.device) -> Objective:
        tokens = sorted({token for answer in lesson.answers for token in answer})
        if len(tokens) < 2:
            raise InputError(
                f"space: labels needs label words of at least two different tokens; these are all {tokens}"
            )
        return cls(torch.tensor(tokens, device=device))


# How steps are taken, and what is given up, one thing after another, where memory is short.


@dataclass(frozen=True)
class MemoryMode:
    """One way to take the steps of a training run."""

    recorded: bool = False  # as a CUDA graph: fast, and its memory is its own until it is done
    checkpointed: bool = False  # activations are computed again in the backward pass
    given_up: str = ""  # what is said where memory ran out in this mode
    last: bool = False


def memory_modes(model: Model, batches: Sequence[Sequence[Sample]], tangent: bool) -> Iterator[MemoryMode]:
    """From the fastest to the one that needs the least memory; ``tangent``: for steps of the linearised model."""
    if is_graphable(model, batches):
        yield MemoryMode(recorded=True, given_up="memory was short: steps were not recorded as a CUDA graph")
    yield MemoryMode(last=tangent, given_up="memory was short: activations were computed again in the backward pass")
    if not tangent:
        yield MemoryMode(checkpointed=True, last=True)


def is_graphable(model: Model, batches: Sequence[Sequence[Sample]]) -> bool:
    """On one GPU, in an architecture whose masks we know, for one demonstration a step."""
    known = model.family.tested and not model.has_experts
    one = len(model.devices) == 1 and model.device.type == "cuda"
    return one and known and all(len(batch) == 1 for batch in batches)


@contextmanager
def checkpointed(model: Model) -> Iterator[None]:
    """Inside ``with`` the backward pass keeps each block's input alone, and runs the block again."""
    with ExitStack() as stack:
        for block in model.blocks:
            before = block.__dict__.get("forward")
            again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
            block.__dict__["forward"] = again
            stack.callback(_put_back, block, before)
        yield


def _put_back(block: nn.Module, before: Any) -> None:
    del block.__dict__["forward"]
    if before is not None:
        block.__dict__["forward"] = before
