"""One's own demonstrations, and the episode that they make."""

from __future__ import annotations

from collections.abc import Sequence

from dualscope.core.errors import InputError
from dualscope.tasks import Episode, Task
from dualscope.tasks.task import TEMPLATE

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
    return Episode.of(task.train, asked, task=task, seed=seed)
