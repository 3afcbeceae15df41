"""One's own demonstrations: the episode that they make, and a learning rate chosen on nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualscope.core.errors import InputError
from dualscope.tasks import Episode, Task, make_lesson

if TYPE_CHECKING:
    from dualscope.models import Model

TEMPLATE = "Sentence: {text} Label:"
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
HELD_OUT = 8
"""At most so many demonstrations are left out in turn."""

Shown = tuple[str, str]
"""A text and its label."""


def own_episode(
    demonstrations: Sequence[Shown],
    queries: Sequence[Shown | str],
    labels: Sequence[str] | None = None,
    template: str | None = None,
    seed: int = 0,
) -> Episode:
    """Demonstrations and queries as they stand. A query without a label is given the first one, and nothing that is
    right or wrong should be said of it.

    >>> episode = own_episode([("a fine film", "good"), ("a dull plot", "bad")], ["a fine plot"])
    >>> episode.task.labels, episode.shots, episode.task.prompt(episode.queries[0])
    (('good', 'bad'), 2, 'Sentence: a fine plot Label:')
    """
    for shown in demonstrations:
        if isinstance(shown, str) or len(shown) != 2:
            raise InputError(f"a demonstration is a pair of text and label, found {shown!r}")
    if not demonstrations:
        raise InputError("give at least one demonstration, a pair of text and label")
    if not queries:
        raise InputError("give at least one query")
    words = list(labels or dict.fromkeys(label for _, label in demonstrations))
    form = TEMPLATE if template is None else template
    task = Task.from_examples(list(demonstrations), labels=words, template=form)
    asked = [(query, words[0]) if isinstance(query, str) else (query[0], query[1]) for query in queries]
    for text, _ in asked:
        if not text.strip():
            raise InputError("a query is empty; give a text to be labelled")
    return Episode.of(list(demonstrations), asked, task=task, seed=seed)


def leave_one_out_rate(model: Model, episode: Episode) -> float:
    """The rate at which plain GD on all demonstrations but one best predicts that one: most often right, then surest.

    There is nothing else to choose it on; the queries are not looked at.
    """
    from dualscope.learners import Bench, identify

    shown = episode.demonstrations
    if len(shown) < 2:
        raise InputError("one demonstration leaves nothing to choose a rate on: give lr")
    scores: dict[float, tuple[int, float]] = dict.fromkeys(RATES, (0, 0.0))
    for index in range(min(len(shown), HELD_OUT)):
        rest = Episode.of([*shown[:index], *shown[index + 1 :]], [shown[index]], task=episode.task, seed=episode.seed)
        bench = Bench(model, make_lesson(rest, model.tokenizer, model.max_positions), want=frozenset())
        for rate in RATES:
            learning = identify("gd", lr=rate)
            chances = bench.result(learning).trace.label_logprobs[0].double().log_softmax(-1)
            bench.forget(learning)
            gold = shown[index].label
            right, likely = scores[rate]
            found = float(chances[gold])
            is_right = int(int(chances.argmax()) == gold)
            scores[rate] = (right + is_right, likely + (found if math.isfinite(found) else -1e9))
    return max(RATES, key=lambda rate: scores[rate])
