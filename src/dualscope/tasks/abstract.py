"""Label words that have nothing to do with the task: what they mean can only be learned from the demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dualscope.core.errors import InputError
from dualscope.tasks.example import Example
from dualscope.tasks.task import Task
from dualscope.tasks.tokens import answer_tokens, encode

GENERAL = tuple(
    """
    red blue green black white apple river lemon tiger candle falcon silver horse winter glass mountain copper pepper
    rabbit window ladder island butter engine pencil hammer summer spring forest ocean desert iron gold stone bread
    honey sugar paper letter number
    """.split()  # noqa: SIM905 (a list of words is read as words)
)
EMBEDDED = tuple(
    """
    Alpha Beta Gamma Delta Omega Sigma Foo Bar Baz Qux One Two Three Four Five Six Left Right Up Down North South East
    West Apple Lemon Cherry Mango Gold Silver Bronze Iron Circle Square Triangle
    """.split()  # noqa: SIM905
)
"""The embedded model has few words; these are the ones that its training gave to classes at random."""


class AbstractTask(Task):
    """A task whose label words were exchanged. Its examples are read once, and with the task's own words."""

    def __init__(self, own: Task, labels: tuple[str, ...]) -> None:
        super().__init__(own.config.model_copy(update={"labels": labels}), own.source, own.chat)
        self.own = own

    @cached_property
    def demonstrations(self) -> tuple[Example, ...] | None:
        return self.own.demonstrations

    @cached_property
    def queries(self) -> tuple[Example, ...] | None:
        return self.own.queries

    @cached_property
    def train(self) -> Sequence[Example]:
        return self.own.train

    @cached_property
    def evaluation(self) -> Sequence[Example]:
        return self.own.evaluation


def with_abstract_labels(task: Task, tokenizer: Any, seed: int) -> Task:
    """The same task, each class under a word that the seed deals out; each word one known token of its own."""
    if isinstance(task, AbstractTask):  # other demonstrations for the same queries keep their words
        return task
    used = {word.lower() for label in task.labels for word in label.split()} | set(task.template.lower().split())

    def usable(words: tuple[str, ...]) -> list[str]:
        return [word for word in words if word.lower() not in used and _is_one_token(word, tokenizer)]

    # The list that the tokenizer knows better; a model of many words knows both.
    best = max((GENERAL, EMBEDDED), key=lambda words: len(usable(words)) / len(words))
    known = usable(best)
    if len(known) < len(task.labels):
        raise InputError(
            f"task '{task.name}': demo_labels: abstract needs {len(task.labels)} words that are one token each in this "
            f"model, and of the words to choose from {len(known)} are; give the task label words of your own"
        )
    order = np.random.default_rng([seed, 9]).permutation(len(known))
    changed = AbstractTask(task, tuple(known[i] for i in order[: len(task.labels)]))
    answer_tokens(changed, tokenizer)  # refuses words that it cannot tell apart
    return changed


def _is_one_token(word: str, tokenizer: Any) -> bool:
    """As it stands after the prompt: with the space before it."""
    tokens = encode([f" {word}"], tokenizer)[0]
    return len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id
