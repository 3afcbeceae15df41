"""Demonstrations as training sequences, and the loss on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dualscope.core.errors import InputError

if TYPE_CHECKING:
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

    def filled(self, width: int) -> Filled:
        """Room for this sequence, or any that is not longer than ``width``."""
        empty = torch.zeros(width, dtype=self.tokens.dtype, device=self.tokens.device)
        return Filled(0, empty, 1, 0, torch.zeros_like(empty), torch.zeros(width, device=empty.device))

    def by_token(self) -> list[Sample]:
        """The same as one sequence for every token that is predicted."""
        return [
            replace(self, tokens=self.tokens[: t + 1], first=t, own=t)
            for t in range(self.first, len(self.tokens))
        ]


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
