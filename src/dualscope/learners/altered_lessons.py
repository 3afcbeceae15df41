"""Other lessons made from a lesson: redrawn, reordered, relabelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dualscope.core.errors import InputError
from dualscope.tasks.episode import arrangement, is_listed
from dualscope.tasks.lesson import NOT_IN_CONTEXT, DemonstrationTokens, Lesson, make_lesson
from dualscope.tasks.tokens import pieces_of

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.episode import Episode
    from dualscope.tasks.mapping import Example


# Other demonstrations in a context of exactly as many tokens.
#
# Where a query stands moves attention by itself, so a ceiling whose context is longer or shorter would be lower for
# that alone.


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


_NO_LIMIT = 10**9  # positions: what a redrawn context may hold is settled by the one it stands for
_FAR = 1_000_003  # added to a seed for another draw: far from the seeds that studies use


def redrawn(lesson: Lesson, model: Model, draw: int = 1) -> Lesson:
    """The same queries after another draw of as many demonstrations, in a context of as many tokens."""
    episode = lesson.episode
    seed = episode.seed + _FAR * draw
    pool = episode.task.train
    if episode.task.source is None:
        raise InputError(
            f"task '{episode.task.name}': another draw of demonstrations needs data to draw from, and this task only "
            f"lists its demonstrations; give it a `source`, or leave the control `redraw` out"
        )
    asked = {query.id for query in episode.queries}
    shuffled = (pool[i] for i in np.random.default_rng(seed).permutation(len(pool)))
    left = (one for one in shuffled if one.id not in asked and not is_listed(episode.task, one))
    seen = list(islice(left, LOOKED_AT * episode.shots))
    drawn = _take(episode, chain(seen, left))
    if len(drawn) < episode.shots:
        raise InputError(
            f"task '{episode.task.name}': another draw of {episode.shots} demonstrations that are not queries is "
            f"needed, and only {len(drawn)} are there; ask for fewer queries or shots"
        )
    if {example.id for example in drawn} == {example.id for example in episode.demonstrations}:
        raise InputError(
            f"task '{episode.task.name}': another draw of {episode.shots} demonstrations would be the same "
            f"{len(drawn)}: there are no others; ask for fewer shots"
        )
    known = {example.id for example in seen}
    alike = as_long_as(lesson, seen + [one for one in drawn if one.id not in known], model.tokenizer)
    again = replace(episode, seed=seed, order=0, demonstrations=tuple(alike))
    made = make_lesson(again, model.tokenizer, _NO_LIMIT, lesson.read_at, "all")
    return of_the_same_length(made, lesson)


def _take(episode: Episode, candidates: Iterator[Example]) -> list[Example]:
    """The first ones, or the first ones of each class where the episode is balanced."""
    if not episode.balanced:
        return list(islice(candidates, episode.shots))
    room = Counter(example.label for example in episode.demonstrations)
    taken = []
    for example in candidates:
        if room[example.label] > 0:
            room[example.label] -= 1
            taken.append(example)
        if len(taken) == episode.shots:
            break
    return taken


def reordered(lesson: Lesson, draw: int = 1) -> Lesson:
    """The same demonstrations, those in the context, in another order, with the labels they had."""
    n = lesson.shots_used
    if n < 2:
        raise InputError(f"{n} demonstration cannot be put in another order; take at least 2 shots")
    order = [int(i) for i in np.random.default_rng([lesson.episode.seed, 5, draw]).permutation(n)]
    if order == sorted(order):  # with few demonstrations a permutation may change nothing
        order = [*order[1:], order[0]]
    rest = range(n, len(lesson.training))
    training = [lesson.training[i] for i in (*order, *rest)]
    context, demonstrations = _laid_out(lesson, [lesson.demonstrations[i] for i in order])
    starts = [d.start for d in demonstrations] + [d.start for d in training[n:]]
    episode = lesson.episode
    was = arrangement(episode.order, episode.seed, episode.shots)
    indices = (*order, *range(n, episode.shots))
    return replace(
        lesson,
        episode=replace(
            episode,
            order=tuple(was[i] for i in indices),
            demonstrations=tuple(episode.demonstrations[i] for i in indices),
        ),
        demonstrations=demonstrations,
        training=tuple(replace(d, start=s) for d, s in zip(training, starts, strict=True)),
        context=context,
    )


def _laid_out(
    lesson: Lesson, demonstrations: list[DemonstrationTokens]
) -> tuple[tuple[int, ...], tuple[DemonstrationTokens, ...]]:
    context = lesson.bos
    placed = []
    for demonstration in demonstrations:
        placed.append(replace(demonstration, start=len(context)))
        context += demonstration.prompt + demonstration.label + lesson.separator
    return context, tuple(placed)


def relabelled(lesson: Lesson, max_positions: int) -> Lesson:
    """The same demonstrations with labels drawn uniformly over the classes, in the context and in the training.

    An episode whose own labels are random has used the draw that others take: here it is another one.
    """
    episode = lesson.episode
    if episode.demo_labels == "random":
        episode = replace(episode, seed=episode.seed + _FAR)
    random = replace(episode, demo_labels="random", corrupt="gd").labels("gd")

    def with_labels(taught: tuple[DemonstrationTokens, ...]) -> list[DemonstrationTokens]:
        return [
            replace(demonstration, label_index=label, label=lesson.answers[label])
            for demonstration, label in zip(taught, random, strict=False)
        ]

    return _taught(lesson, with_labels(lesson.demonstrations), with_labels(lesson.training), max_positions)


def with_labels(lesson: Lesson, labels: Sequence[int]) -> Lesson:
    """The same demonstrations in the same order with these classes as labels, in the context and in the training.

    Training examples that the context had no room for keep their labels.
    """
    shown = {one.id: label for one, label in zip(lesson.demonstrations, labels, strict=True)}
    return _with_label_of(lesson, [shown[one.id] for one in lesson.demonstrations], shown)


def with_labels_of_places(lesson: Lesson, places: Sequence[int]) -> Lesson:
    """The same demonstrations, each with the label of the demonstration at the place that is named for it.

    Where only one learner's labels are corrupted, each learner's own labels are permuted, in the same way.
    """
    own = [one.label_index for one in lesson.demonstrations]
    trained = {one.id: one.label_index for one in lesson.training}
    ids = [one.id for one in lesson.demonstrations]
    taught = {name: trained.get(ids[place], own[place]) for name, place in zip(ids, places, strict=True)}
    return _with_label_of(lesson, [own[place] for place in places], taught)


def _with_label_of(lesson: Lesson, shown: Sequence[int], taught: Mapping[str, int]) -> Lesson:
    def relabel(one: DemonstrationTokens, label: int) -> DemonstrationTokens:
        return replace(one, label_index=label, label=lesson.answers[label])

    changed = [relabel(one, label) for one, label in zip(lesson.demonstrations, shown, strict=True)]
    context, placed = _laid_out(lesson, changed)
    start = {one.id: one.start for one in placed}
    training = (
        replace(relabel(one, taught.get(one.id, one.label_index)), start=start.get(one.id, one.start))
        for one in lesson.training
    )
    return replace(lesson, demonstrations=placed, training=tuple(training), context=context)


def without_labels(lesson: Lesson) -> Lesson:
    """The same demonstrations to train on, their prompts alone; the context is the lesson's own."""
    return replace(lesson, training=tuple(replace(one, label=()) for one in lesson.training))


def borrowed(lesson: Lesson, other: Lesson, max_positions: int) -> Lesson:
    """Another task's demonstrations before the lesson's own queries; its classes stand for the lesson's, in turn."""

    def here(taught: tuple[DemonstrationTokens, ...]) -> list[DemonstrationTokens]:
        classes = len(lesson.answers)
        return [replace(d, label_index=d.label_index % classes) for d in taught]

    return _taught(lesson, here(other.demonstrations), here(other.training), max_positions)


def _taught(
    lesson: Lesson, demonstrations: list[DemonstrationTokens], training: list[DemonstrationTokens], max_positions: int
) -> Lesson:
    """The lesson's queries after other demonstrations, as many as fit before the longest query."""
    room = max_positions - max(map(len, lesson.queries)) - max(map(len, lesson.answers))
    context, placed = _laid_out(lesson, demonstrations)
    while len(context) > room and len(placed) > 1:
        context, placed = _laid_out(lesson, demonstrations[: len(placed) - 1])
    starts = [d.start for d in placed]
    if lesson.gd_demonstrations == "all" or len(placed) == len(demonstrations):
        starts += [NOT_IN_CONTEXT] * (len(training) - len(starts))
    return replace(
        lesson,
        demonstrations=placed,
        training=tuple(replace(d, start=s) for d, s in zip(training, starts, strict=False)),
        context=context,
        shots_used=len(placed),
    )
