"""The scale of a response: what it would look like if the answer were yes, and what copying alone would do.

A plant is a reference whose mechanism is known because we put it there: the queries read, after a context without
labels, by a model that a hypothesis has changed. ICL in another order shows how reproducible ICL's own response is.
ICL after other inputs with the same labels in the same places shows what copying labels by their place would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dualscope.core.errors import InputError
from dualscope.learners.altered_lessons import of_the_same_length
from dualscope.learners.null_learners import unlabelled
from dualscope.models.reading.prefix import encoded_together
from dualscope.tasks.tokens import pieces_of

if TYPE_CHECKING:
    from dualscope.descent.changes_of_draws import DrawsChange
    from dualscope.learners.bench import Bench
    from dualscope.learners.learner import Change
    from dualscope.models.model import Model
    from dualscope.models.reading.trace import Trace
    from dualscope.tasks.lesson import Lesson
    from dualscope.tasks.mapping import Example


def planted(bench: Bench, change: Change) -> Trace:
    """The queries after the lesson's own context without its labels, read by the changed model."""
    model, lesson = bench.model, bench.lesson
    with change.applied(model):
        return model.read(lesson, model.prefix(unlabelled(lesson)))


def planted_draws(bench: Bench, change: DrawsChange, draws: int) -> list[Trace]:
    """The same by the models of several draws at once."""
    model, lesson = bench.model, bench.lesson
    with change.applied(model):
        return model.read_draws(lesson, draws, encoded_together(model, [unlabelled(lesson)] * draws))


def with_other_inputs(lesson: Lesson, model: Model, spare: Sequence[Example], number: int) -> Lesson:
    """The lesson's labels in the same places behind other inputs: spare examples, drawn whatever their class.

    The context is as long as the lesson's. ``number`` says which set of inputs; it is the same for all draws.

    Raises:
        InputError: There are fewer spare examples than demonstrations.
    """
    shown, task = lesson.demonstrations, lesson.episode.task
    if len(spare) < len(shown):
        raise InputError(
            f"task '{task.name}': labels behind other inputs need {len(shown)} spare training examples, and "
            f"{len(spare)} are left"
        )
    rng = np.random.default_rng([lesson.episode.seed, 21, number])
    drawn = [spare[int(i)] for i in rng.permutation(len(spare))[: len(shown)]]
    prompts = pieces_of(task, model.tokenizer).prompts([task.prompt(example) for example in drawn])
    other = tuple(
        replace(one, id=example.id, prompt=prompt) for one, example, prompt in zip(shown, drawn, prompts, strict=True)
    )
    return of_the_same_length(replace(lesson, demonstrations=other, training=other), lesson)
