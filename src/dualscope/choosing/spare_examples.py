"""Spare training examples, never a query or a demonstration: what settings are chosen and ceilings fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.tasks.episode import spare
from dualscope.tasks.lesson import DemonstrationTokens, Lesson
from dualscope.tasks.tokens import pieces_of

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.episode import Episode
    from dualscope.tasks.mapping import Example


MOST = 300  # of a bench: more than any learner asks for


def spare_of(lesson: Lesson, model: Model, also: Sequence[Episode] = ()) -> tuple[Example, ...]:
    """Training examples that are neither demonstrations nor queries of this lesson, or of the episodes ``also``.

    None is longer than the lesson's longest query, so that each can be read after the same context.
    """
    episode = lesson.episode
    left = spare(episode.task, [episode, *also], len(episode.task.train))
    longest = max(map(len, lesson.queries))
    encode = pieces_of(episode.task, model.tokenizer).prompts
    kept: list[Example] = []
    for first in range(0, len(left), MOST):
        some = left[first : first + MOST]
        prompts = encode([episode.task.prompt(example) for example in some])
        kept += [example for example, prompt in zip(some, prompts, strict=True) if 0 < len(prompt) <= longest]
        if len(kept) >= MOST:
            break
    return tuple(kept[:MOST])


def asking(lesson: Lesson, model: Model, examples: Sequence[Example]) -> Lesson:
    """The lesson's demonstrations before other queries, which are read where their label is predicted."""
    task = lesson.episode.task
    return replace(
        lesson,
        queries=tuple(pieces_of(task, model.tokenizer).prompts([task.prompt(e) for e in examples])),
        labels=tuple(example.label for example in examples),
        query_ids=tuple(example.id for example in examples),
        read_at="prompt-end",
    )


def asking_demonstrations(lesson: Lesson) -> Lesson:
    """What the lesson teaches, asked: the demonstrations' prompts as queries, with the labels that were taught."""
    taught = lesson.training
    return replace(
        lesson,
        queries=tuple(d.prompt for d in taught),
        labels=tuple(d.label_index for d in taught),
        query_ids=tuple(d.id for d in taught),
        read_at="prompt-end",
    )


def leaving_one_out(lesson: Lesson) -> list[Lesson]:
    """Each demonstration asked after the others: what is left to choose by where no example is spare."""
    if lesson.shots_used < 2:
        raise InputError(
            f"task '{lesson.episode.task.name}': nothing can be chosen with {lesson.shots_used} demonstration and no "
            "spare example; give the setting yourself, or more demonstrations"
        )
    return [_without(lesson, i) for i in range(lesson.shots_used)]


def _without(lesson: Lesson, asked: int) -> Lesson:
    context = lesson.bos
    kept: list[DemonstrationTokens] = []
    for i, demonstration in enumerate(lesson.demonstrations):
        if i != asked:
            kept.append(replace(demonstration, start=len(context)))
            context += demonstration.prompt + demonstration.label + lesson.separator
    out = lesson.demonstrations[asked]
    return replace(
        lesson,
        demonstrations=tuple(kept),
        training=tuple(d for d in lesson.training if d.id != out.id),
        context=context,
        queries=(out.prompt,),
        labels=(out.label_index,),
        query_ids=(out.id,),
        read_at="prompt-end",
        shots_used=len(kept),
    )


def asking_first(lesson: Lesson, model: Model, spare: Sequence[Example], count: int, needed: str) -> Lesson:
    """The lesson that asks the first ``count`` spare examples; ``needed`` says of whom, where they are too few.

    Where none is spare the demonstrations' own prompts stand in for them.
    """
    if not spare:
        own = asking_demonstrations(lesson)
        return own.only(range(min(count, len(own.queries))))
    taught = {d.id for d in (*lesson.demonstrations, *lesson.training)}  # a redrawn lesson may use some
    left = [example for example in spare if example.id not in taught]
    if len(left) < count:
        raise InputError(
            f"task '{lesson.episode.task.name}': {needed} needs {count} spare training examples, and {len(left)} "
            "are left that are neither demonstrations nor queries nor longer than the longest query"
        )
    return asking(lesson, model, left[:count])


RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the mean squared norm of the inputs


def ridge(inputs: Tensor, targets: Tensor) -> Tensor:
    """(inputs inputs^T + lambda I)^-1, with the lambda that predicts each target best from all the others.

    The solution of ``A u = t`` is then targets^T @ this @ inputs. [examples, width] twice -> [examples, examples].
    """
    gram = inputs @ inputs.T
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    best, least = eye, torch.inf
    for share in RIDGES:
        inverse = torch.linalg.inv(gram + share * gram.diagonal().mean() * eye)
        hat = gram @ inverse
        left_out = (targets - hat @ targets) / (1 - hat.diagonal())[:, None]
        error = float(left_out.square().sum())
        if error < least:
            best, least = inverse, error
    return best
