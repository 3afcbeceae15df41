"""Tasks: data sets with templates, and what is drawn from them and put before a model."""

from dualscope.tasks.catalog import catalog_names
from dualscope.tasks.episode import Episode, spare
from dualscope.tasks.lesson import DemonstrationTokens, Lesson, make_lesson
from dualscope.tasks.mapping import Example
from dualscope.tasks.sources import GENERATORS
from dualscope.tasks.task import Task
from dualscope.tasks.task_config import TaskConfig

__all__ = [
    "GENERATORS",
    "DemonstrationTokens",
    "Episode",
    "Example",
    "Lesson",
    "Task",
    "TaskConfig",
    "catalog_names",
    "make_lesson",
    "spare",
]
