"""Texts in a model's own tokens: pieces, the separator, the label words."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dualscope.core.errors import InputError
from dualscope.tasks.task import Task

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Pieces:
    """A task in a model's tokens, piece by piece: what is joined to contexts and queries."""

    bos: Tokens  # what stands before everything
    separator: Tokens  # what follows every demonstration
    answers: tuple[Tokens, ...]  # by class
    prompts: Callable[[Sequence[str]], list[Tokens]]


def pieces_of(task: Task, tokenizer: Any) -> Pieces:
    """As plain text, or as the turns of a conversation where the task is told in chat."""
    if task.chat:
        from dualscope.tasks.chat import chat_pieces

        return chat_pieces(task, tokenizer)
    bos: Tokens = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)
    separator = separator_tokens(task, tokenizer)
    return Pieces(bos, separator, answer_tokens(task, tokenizer), lambda texts: encode(texts, tokenizer))


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
    check_answers(task, answers, tokenizer)
    return answers


def check_answers(task: Task, answers: Sequence[Tokens], tokenizer: Any) -> None:
    """Label words must have tokens, and different ones; and should have tokens that the model knows."""
    unknown = unknown_token(tokenizer)
    for label, tokens in enumerate(answers):
        if unknown in tokens:
            warnings.warn(
                f"task '{task.name}': label word '{task.labels[label]}' is {'' if len(tokens) == 1 else 'partly '}"
                f"unknown to this model (token {tokenizer.unk_token!r}): it cannot be told from other unknown words; "
                "choose a word of its vocabulary",
                stacklevel=2,
            )
        if not tokens:
            raise InputError(f"task '{task.name}': label word '{task.labels[label]}' has no tokens in this model")
        for other in range(len(answers)):
            pair = f"label words '{task.labels[label]}' and '{task.labels[other]}'"
            if other > label and answers[other] == tokens:
                raise InputError(
                    f"task '{task.name}': {pair} have the same tokens {list(tokens)} in this model"
                    + (", which does not know these words" if unknown in tokens else "")
                    + "; it cannot tell them apart, choose others"
                )
            if other != label and answers[other][: len(tokens)] == tokens:
                warnings.warn(
                    f"task '{task.name}': {pair}: the tokens of the first begin those of the second, so "
                    f"their log-probabilities are not independent",
                    stacklevel=2,
                )


def _adds_space(word: str, tokenizer: Any) -> bool:
    """Whether every text gets a space before it anyway (Llama 2's kind), so that ours would be a second."""
    spaced, plain = encode([f" {word}", word], tokenizer)
    joined = tokenizer.decode(list(plain + spaced), clean_up_tokenization_spaces=False)
    return spaced != plain and f"  {word}" in joined


def unknown_token(tokenizer: Any) -> int | None:
    """What unknown words become, or None where there are none: byte-level vocabularies know every text."""
    token = tokenizer.unk_token_id
    return None if token is None else int(token)
