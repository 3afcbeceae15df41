"""Other demonstrations in a context of exactly as many tokens.

Where a query stands moves attention by itself, so a ceiling whose context is longer or shorter would be lower for that
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from dualscope.tasks.tokens import pieces_of

if TYPE_CHECKING:
    from dualscope.tasks.example import Example
    from dualscope.tasks.lesson import DemonstrationTokens, Lesson

# Candidates a demonstration: enough for one of the same length, without tokenising a whole data set.
LOOKED_AT = 64


def as_long_as(lesson: Lesson, candidates: Sequence[Example], tokenizer: Any) -> list[Example]:
    """One candidate for every demonstration, in order, the first of the same length (and class, where balanced).

    Where there is none, the nearest length, and what is too much or too little is made up for by those that follow.
    The lesson's own demonstrations are taken only where there are not enough others.
    """
    episode = lesson.episode
    own = {example.id for example in episode.demonstrations}
    kinds: dict[int | None, list[Example]] = {}
    for kind in {example.label if episode.balanced else None for example in episode.demonstrations}:
        alike = [example for example in candidates if kind in (None, example.label)]
        others = [example for example in alike if example.id not in own]
        needed = sum(kind in (None, example.label) for example in episode.demonstrations)
        kinds[kind] = others if len(others) >= needed else others + [e for e in alike if e.id in own]
    free = {kind: _by_length(lesson, some[: LOOKED_AT * episode.shots], tokenizer) for kind, some in kinds.items()}
    wanted = [len(shown.prompt) + len(shown.label) for shown in lesson.demonstrations]
    wanted += [round(sum(wanted) / len(wanted))] * (episode.shots - len(wanted))  # beyond the context: any
    taken, owed = [], 0
    for example, length in zip(episode.demonstrations, wanted, strict=True):
        lengths = free[example.label if episode.balanced else None]
        found = min((n for n in lengths if lengths[n]), key=lambda n: (abs(n - length - owed), n))
        owed += length - found
        taken.append(lengths[found].pop(0))
    return taken


def _by_length(lesson: Lesson, examples: Sequence[Example], tokenizer: Any) -> dict[int, list[Example]]:
    """Examples by the tokens of prompt and label, each in the order given."""
    task = lesson.episode.task
    pieces, found = pieces_of(task, tokenizer), dict[int, list["Example"]]()
    prompts = pieces.prompts([task.prompt(example) for example in examples])
    for example, prompt in zip(examples, prompts, strict=True):
        found.setdefault(len(prompt) + len(pieces.answers[example.label]), []).append(example)
    return found


def of_the_same_length(made: Lesson, lesson: Lesson) -> Lesson:
    """``lesson`` with the demonstrations of another that was made without a limit, its context as long to the token.

    What is left over is cut from the front of the first demonstration (and the next, where it is too short), or filled
    up there with separators: the place that is furthest from the query.
    """
    shown = list(made.demonstrations[: lesson.shots_used])
    sizes = [len(one.prompt) + len(one.label) + len(lesson.separator) for one in shown]
    over = len(lesson.bos) + sum(sizes) - len(lesson.context)
    if over < 0:
        filler = tuple(islice(cycle(lesson.separator or shown[0].prompt[-1:]), -over))
        shown[0] = replace(shown[0], prompt=filler + shown[0].prompt)
    context = lesson.bos
    placed: list[DemonstrationTokens] = []
    for one in shown:
        cut = min(max(over, 0), len(one.prompt) - 1)
        one, over = replace(one, prompt=one.prompt[cut:]), over - cut
        placed.append(replace(one, start=len(context)))
        context += one.prompt + one.label + lesson.separator
    training = list(made.training[: len(lesson.training)])
    for row, one in enumerate(placed[: len(training)]):
        training[row] = replace(training[row], prompt=one.prompt, start=one.start)
    training[len(placed) :] = [replace(taught, start=-1) for taught in training[len(placed) :]]
    return replace(
        lesson, episode=made.episode, demonstrations=tuple(placed), training=tuple(training), context=context
    )
