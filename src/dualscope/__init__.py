"""dualscope: is in-context learning gradient descent? Measure it, on any causal language model.

The contents page. Names are imported when they are first used, so ``import dualscope`` is instant.

>>> import dualscope
>>> dualscope.Task.load("sst2").labels
('Negative', 'Positive')
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dualscope._version import __version__
from dualscope.core.errors import InputError
from dualscope.core.network import silence

if TYPE_CHECKING:  # for editors and type checkers: the same names as in _HOME
    from dualscope.descent.delta import Delta as Delta
    from dualscope.learners.bench import Bench as Bench
    from dualscope.learners.learner import LEARNERS as LEARNERS
    from dualscope.learners.learner import Learned as Learned
    from dualscope.learners.learner import Learner as Learner
    from dualscope.learners.rate import choose_rate as choose_rate
    from dualscope.metrics.case import Case as Case
    from dualscope.metrics.catalog import METRICS as METRICS
    from dualscope.metrics.rows import measure as measure
    from dualscope.models.model import Model as Model
    from dualscope.models.trace import Trace as Trace
    from dualscope.results.compare import Comparison as Comparison
    from dualscope.results.compare import compare as compare
    from dualscope.studies.config import Study as Study
    from dualscope.studies.execute.runner import run_study as run_study
    from dualscope.studies.run_folder.storage import Run as Run
    from dualscope.tasks.catalog import catalog_names as catalog_names
    from dualscope.tasks.episode import Episode as Episode
    from dualscope.tasks.example import Example as Example
    from dualscope.tasks.generators import GENERATORS as GENERATORS
    from dualscope.tasks.lesson import Lesson as Lesson
    from dualscope.tasks.lesson import make_lesson as make_lesson
    from dualscope.tasks.task import Task as Task

silence()  # here, so that it comes before any library that would speak

_HOME = {
    # tasks
    "Task": "dualscope.tasks.task",
    "Example": "dualscope.tasks.example",
    "Episode": "dualscope.tasks.episode",
    "Lesson": "dualscope.tasks.lesson",
    "make_lesson": "dualscope.tasks.lesson",
    "catalog_names": "dualscope.tasks.catalog",
    "GENERATORS": "dualscope.tasks.generators",
    # models
    "Model": "dualscope.models.model",
    "Trace": "dualscope.models.trace",
    # learners
    "LEARNERS": "dualscope.learners.learner",
    "Learner": "dualscope.learners.learner",
    "Learned": "dualscope.learners.learner",
    "Bench": "dualscope.learners.bench",
    "Delta": "dualscope.descent.delta",
    "choose_rate": "dualscope.learners.rate",
    # metrics
    "METRICS": "dualscope.metrics.catalog",
    "Case": "dualscope.metrics.case",
    "measure": "dualscope.metrics.rows",
    # studies
    "Study": "dualscope.studies.config",
    "Run": "dualscope.studies.run_folder.storage",
    "run_study": "dualscope.studies.execute.runner",
    "compare": "dualscope.results.compare",
    "Comparison": "dualscope.results.compare",
}

__all__ = ["InputError", "__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'dualscope' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
