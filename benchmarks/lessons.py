"""Lessons of random tokens whose lengths are those of real text.

``lengths.json`` holds, for each of the papers' tasks, how many tokens a byte-level BPE of 50,000 tokens, trained on
the tasks' own text, makes of training and evaluation examples. cb has 16 of each there; they are repeated.
"""

import json
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from dualscope.tasks.episode import Episode
from dualscope.tasks.lesson import DemonstrationTokens, Lesson

LENGTHS = json.loads((Path(__file__).parent / "lengths.json").read_text())
TASKS = tuple(LENGTHS)
BOS, SEPARATOR = (0,), (1,)


def real_lengths(task: str, shots: int, queries: int, vocabulary: int, seed: int = 0, positions: int = 2048) -> Lesson:
    """As many of ``shots`` demonstrations as fit, and queries, of a task's real lengths."""
    rng = np.random.default_rng(seed)
    lengths = LENGTHS[task]
    demonstrations = list(islice(cycle(rng.permutation(lengths["demonstrations"])), shots))
    asked = list(islice(cycle(rng.permutation(lengths["queries"])), queries))
    return make(demonstrations, asked, lengths["classes"], vocabulary, seed, positions)


def of_length(context: int, query: int, queries: int, vocabulary: int, classes: int = 2, seed: int = 0) -> Lesson:
    """A context of (about) so many tokens in demonstrations as long as the queries, which are all equally long."""
    return make([query] * max(1, (context - 1) // (query + 2)), [query] * queries, classes, vocabulary, seed)


def make(
    demonstrations: list[int], queries: list[int], classes: int, vocabulary: int, seed: int, positions: int = 2048
) -> Lesson:
    rng = np.random.default_rng([seed, 7])

    def words(n: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(2 + classes, vocabulary, n))

    answers = tuple((2 + label,) for label in range(classes))
    room = positions - max(queries) - 1
    context: tuple[int, ...] = BOS
    shown = []
    for i, length in enumerate(demonstrations):
        label = int(rng.integers(classes))
        prompt = words(int(length))
        if len(context) + len(prompt) + 2 > room:
            break
        shown.append(DemonstrationTokens(f"train:{i}", label, prompt, answers[label], len(context)))
        context += prompt + answers[label] + SEPARATOR
    return Lesson(
        episode=cast("Episode", _episode(seed, classes)),
        bos=BOS,
        separator=SEPARATOR,
        demonstrations=tuple(shown),
        training=tuple(shown),
        context=context,
        queries=tuple(words(int(n)) for n in queries),
        answers=answers,
        labels=tuple(int(c) for c in rng.integers(classes, size=len(queries))),
        query_ids=tuple(f"evaluation:{i}" for i in range(len(queries))),
        read_at="prompt-end",
        shots=len(demonstrations),
        shots_used=len(shown),
    )


def _episode(seed: int, classes: int) -> SimpleNamespace:
    """What learners ask of an episode that has no examples."""
    task = SimpleNamespace(name="random", labels=[f"label {i}" for i in range(classes)])
    return SimpleNamespace(seed=seed, order=0, task=task)
