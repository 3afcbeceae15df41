"""What a data set is like, in a few numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dualscope.tasks.task import Task


@dataclass(frozen=True)
class Statistics:
    """Sizes of both splits, and of the evaluation split what guessing is worth and how long its prompts are."""

    train: int
    evaluation: int
    classes: int
    majority: float  # the share of the commonest class
    words: float  # of a prompt, on average
    longest: int  # words

    @property
    def uniform(self) -> float:
        """The accuracy of a uniform random guess."""
        return 1 / self.classes


def statistics_of(task: Task) -> Statistics:
    """Reads both splits.

    >>> found = statistics_of(Task.load("embedded-sst2"))
    >>> found.classes, found.uniform, 0.5 <= found.majority < 0.6
    (2, 0.5, True)
    """
    labels: Counter[int] = Counter()
    words: list[int] = []
    for example in task.evaluation:
        labels[example.label] += 1
        words.append(len(task.prompt(example).split()))
    return Statistics(
        train=len(task.train),
        evaluation=len(words),
        classes=len(task.labels),
        majority=max(labels.values()) / len(words),
        words=sum(words) / len(words),
        longest=max(words),
    )
