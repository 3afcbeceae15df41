"""Which task a learner is taught in place of its own, where a control asks for that."""

from __future__ import annotations

from collections.abc import Sequence

from dualscope.tasks import Task

SAMPLE = 200  # training examples that tell how long a task's texts are


def other_task(own: Task, tasks: Sequence[Task]) -> Task | None:
    """The task for a control that is taught another one: no label word in common, texts of about the same length.

    Whatever the order in which tasks are listed.
    """

    def words(task: Task) -> set[str]:
        return {label.strip().casefold() for label in task.labels}

    def length(task: Task) -> float:
        some = task.train[:SAMPLE]
        return sum(len(task.prompt(example)) for example in some) / max(1, len(some))

    apart = [task for task in tasks if task.name != own.name and not words(task) & words(own)]
    return min(apart, key=lambda task: (abs(length(task) - length(own)), task.name), default=None)
