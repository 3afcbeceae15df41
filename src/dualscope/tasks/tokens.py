"""Texts in a model's own tokens: pieces, the separator, the label words."""

import warnings
from collections.abc import Sequence
from typing import Any

from dualscope.core.errors import InputError
from dualscope.tasks.task import Task

Tokens = tuple[int, ...]


def encode(texts: Sequence[str], tokenizer: Any) -> list[Tokens]:
    """Each text alone, nothing added.

    A text that spells a special token is text, as far as the tokenizer allows (a unigram vocabulary may not).
    """
    ids = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [tuple(map(int, row)) for row in ids]


def separator_tokens(task: Task, tokenizer: Any) -> Tokens:
    """The task's separator, or the tokenizer's EOS; no EOS and no separator is an error, not a guess."""
    if task.separator is not None:
        return encode([task.separator], tokenizer)[0]
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"task '{task.name}': the tokenizer has no EOS to stand between demonstrations; give the task a "
            f'`separator`, for example separator: "\\n"'
        )
    return (int(tokenizer.eos_token_id),)


def answer_tokens(task: Task, tokenizer: Any) -> tuple[Tokens, ...]:
    """The tokens of every label word, so that prompt + answer reads "...Label: Positive", with one space."""
    texts = [task.answer(label) for label in range(len(task.labels))]
    if _adds_space(task.labels[0], tokenizer):
        texts = [text.removeprefix(" ") for text in texts]
    answers = tuple(encode(texts, tokenizer))
    for label, tokens in enumerate(answers):
        if not tokens:
            raise InputError(
                f"task '{task.name}': label word '{task.labels[label]}' has no tokens in this model"
            )
        for other in range(len(answers)):
            pair = f"label words '{task.labels[label]}' and '{task.labels[other]}'"
            if other > label and answers[other] == tokens:
                raise InputError(
                    f"task '{task.name}': {pair} have the same tokens {list(tokens)} in this model; it "
                    f"cannot tell them apart, choose others"
                )
            if other != label and answers[other][: len(tokens)] == tokens:
                warnings.warn(
                    f"task '{task.name}': {pair}: the tokens of the first begin those of the second, so "
                    f"their log-probabilities are not independent",
                    stacklevel=2,
                )
    return answers


def _adds_space(word: str, tokenizer: Any) -> bool:
    """Whether every text gets a space before it anyway (Llama 2's kind), so that ours would be a second."""
    spaced, plain = encode([f" {word}", word], tokenizer)
    joined = tokenizer.decode(list(plain + spaced), clean_up_tokenization_spaces=False)
    return spaced != plain and f"  {word}" in joined
