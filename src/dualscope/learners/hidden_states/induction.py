"""Induction: does a head, at a token that was there before, look at what followed it then? (Olsson et al. 2022)"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

SEQUENCES, LONGEST = 20, 50  # how many, and the most random tokens before they are repeated


@torch.no_grad()
def induction_scores(model: Model, lesson: Lesson) -> Tensor:
    """On random tokens that are repeated in part: every head's attention from the last token to the one that followed
    its first occurrence, [sequences, layers, heads].
    """
    sequences, periods = repeated_sequences(model, lesson)
    asked = replace(
        lesson,
        queries=sequences,
        answers=(lesson.answers[0][:1],),
        labels=(0,) * len(sequences),
        query_ids=tuple(f"sequence:{i}" for i in range(len(sequences))),
        read_at="prompt-end",
        watched={},
    )
    weights = model.read(asked, want=frozenset({"attention"})).extras["attention_own"]
    # What followed the first occurrence stands one period before what comes next, and weights end with the last token.
    followers = weights.shape[-1] - torch.tensor(periods, device=weights.device)
    rows = torch.arange(len(weights), device=weights.device)
    return weights.movedim(-1, 1)[rows, followers]


def repeated_sequences(model: Model, lesson: Lesson) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
    """Random tokens, all different, and some of them again; with how many come before the first one is repeated.

    How many that is, and where it ends, are drawn anew for each: no fixed distance leads to the right place.
    """
    rng = np.random.default_rng([lesson.episode.seed, 11])
    known = min(len(model.tokenizer), model.hf.get_input_embeddings().num_embeddings)
    vocabulary = np.setdiff1d(np.arange(known), model.tokenizer.all_special_ids)
    longest = min(LONGEST, len(vocabulary), (model.max_positions - len(lesson.bos)) // 2)
    sequences, periods = [], []
    for _ in range(SEQUENCES):
        period = int(rng.integers(longest // 2 + 1, longest + 1))
        tokens = rng.permutation(vocabulary)[:period].tolist()
        sequences.append((*tokens, *tokens[: int(rng.integers(1, period))]))
        periods.append(period)
    return tuple(sequences), periods
