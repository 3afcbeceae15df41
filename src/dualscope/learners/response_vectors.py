"""Responses as vectors: the answers to the queries, what of them moves from draw to draw, and the function in that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.nn import functional as F

from dualscope.core.words import Level

if TYPE_CHECKING:
    from torch import Tensor

UNIFORM = 1e-3  # mixed into label probabilities, so that no log-probability runs away


def answer_vectors(label_logprobs: Tensor) -> Tensor:
    """Log-probabilities of the classes as vectors: renormalised, mixed with a little of the uniform, centred.

    >>> import torch
    >>> answer_vectors(torch.tensor([[0.5, 0.5]]).log())
    tensor([[0., 0.]], dtype=torch.float64)
    """
    shares = F.softmax(label_logprobs.double(), -1)
    logs = ((1 - UNIFORM) * shares + UNIFORM / shares.shape[-1]).log()
    return logs - logs.mean(-1, keepdim=True)


def centred(values: Tensor, levels: Sequence[Level | None]) -> Tensor:
    """D: every draw less the mean over the draws of its level. ``values`` is [draws, ...]."""
    found = values.double().clone()
    for level in dict.fromkeys(levels):
        rows = [row for row, own in enumerate(levels) if own == level]
        found[rows] -= found[rows].mean(0, keepdim=True)
    return found


def function_part(responses: Tensor) -> Tensor:
    """The responses less each draw's mean over the queries: the function that was learned, without its prior."""
    return responses - responses.mean(1, keepdim=True)
