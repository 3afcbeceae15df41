"""Queries in batches: which go together, and as which tokens."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.models.capture.session import RowIndex
from dualscope.models.reading.memory import batch_size as default_batch_size
from dualscope.models.reading.prefix import Prefix, Prefixes

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

FEWEST = 64  # queries of a batch of mixed lengths before a shorter length may start a new one
FEWEST_TOKENS = {"cuda": 8192}  # and tokens: below, a GPU waits for work, and what is filled up costs nothing
SHORTEST = 0.8  # of the batch's longest


@dataclass(frozen=True)
class Batch:
    """Which queries, and their tokens with BOS in front where there is no prefix."""

    queries: list[int]
    tokens: Tensor  # [queries, lead + own tokens]
    lead: int
    prompt_end: RowIndex  # the row that predicts the label
    read: RowIndex  # the row that is recorded

    @property
    def final(self) -> RowIndex | None:
        """The one row that is asked for of each sequence; None where the row that is recorded is another one."""
        if isinstance(self.read, int):
            return self.read if self.read == self.prompt_end else None
        return self.read  # lengths are mixed only where both are the same

    def part(self, rows: slice) -> "Batch":
        prompt_end, read = (r if isinstance(r, int) else r[rows] for r in (self.prompt_end, self.read))
        return Batch(self.queries[rows], self.tokens[rows], self.lead, prompt_end, read)

    def times(self, count: int) -> "Batch":
        """The same queries so many times, one after the other."""
        if count == 1:
            return self
        prompt_end, read = (r if isinstance(r, int) else r.repeat(count) for r in (self.prompt_end, self.read))
        return Batch(self.queries * count, self.tokens.repeat(count, 1), self.lead, prompt_end, read)


def batches_of(
    model: "Model", lesson: "Lesson", prefix: Prefix | Prefixes | None, batch_size: int | None, draws: int = 1
) -> Iterator[Batch]:
    """Longest first, so that a lack of memory shows at once; the same batches for the same model and lengths.

    ``draws``: how often each of them will be read at once.
    """
    lead = () if prefix is not None else lesson.bos
    alone = all(len(answer) == 1 for answer in lesson.answers) and lesson.read_at == "prompt-end"
    if model.mixes_lengths and alone:
        yield from _mixed(model, lesson, prefix, lead, batch_size, draws)
    else:
        yield from _equal(model, lesson, prefix, lead, batch_size, draws)


def _equal(
    model: "Model",
    lesson: "Lesson",
    prefix: Prefix | Prefixes | None,
    lead: tuple[int, ...],
    batch_size: int | None,
    draws: int,
) -> Iterator[Batch]:
    """Queries of exactly equal length: nothing is filled up."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, prompt in enumerate(lesson.queries):
        groups[len(lesson.own_tokens(i)), len(prompt)].append(i)
    widest = max(len(answer) for answer in lesson.answers)
    for (own, prompt_length), members in sorted(groups.items(), reverse=True):
        size = batch_size or default_batch_size(model, len(lead) + own + widest - 1, len(prefix or ()), draws)
        for first in range(0, len(members), size):
            queries = members[first : first + size]
            tokens = torch.tensor([[*lead, *lesson.own_tokens(i)] for i in queries], device=model.device)
            prompt_end = len(lead) + prompt_length - 1
            yield Batch(queries, tokens, len(lead), prompt_end, len(lead) + own - 1)


def _mixed(
    model: "Model",
    lesson: "Lesson",
    prefix: Prefix | Prefixes | None,
    lead: tuple[int, ...],
    batch_size: int | None,
    draws: int,
) -> Iterator[Batch]:
    """Queries of nearly equal length, the shorter ones filled up after the position that is read.

    Nothing can be seen from there of what comes later, so the numbers are those of the query alone; and a few large
    batches take less time than many small ones: a fraction of it where a device waits for work rather than working.
    """
    by_length = sorted(range(len(lesson.queries)), key=lambda i: (-len(lesson.queries[i]), i))
    while by_length:
        longest = len(lesson.queries[by_length[0]])
        size = batch_size or default_batch_size(model, len(lead) + longest, len(prefix or ()), draws)
        fewest = max(FEWEST, FEWEST_TOKENS.get(model.device.type, 0) // (len(lead) + longest))
        fewest = max(1, fewest // draws)
        enough = [i for i in by_length[fewest:size] if len(lesson.queries[i]) >= SHORTEST * longest]
        queries = by_length[: min(fewest, size)] + enough
        by_length = by_length[len(queries) :]
        rows = [[*lead, *lesson.queries[i]] for i in queries]
        full = [row + [0] * (len(rows[0]) - len(row)) for row in rows]
        last = torch.tensor([len(row) - 1 for row in rows], device=model.device)
        yield Batch(queries, torch.tensor(full, device=model.device), len(lead), last, last)
