"""The public names and where they live: the one list, for editors, type checkers and the package itself."""

from .core.errors import InputError as InputError
from .descent.delta import Delta as Delta
from .learners.bench import Bench as Bench
from .learners.chosen_settings import choose_settings as choose_settings
from .learners.interventions import INTERVENTIONS as INTERVENTIONS
from .learners.interventions import Intervention as Intervention
from .learners.learner import LEARNERS as LEARNERS
from .learners.learner import Learned as Learned
from .learners.learner import Learner as Learner
from .metrics.case import Case as Case
from .metrics.catalog import METRICS as METRICS
from .metrics.measured import measure as measure
from .models.model import Model as Model
from .models.reading.trace import Trace as Trace
from .results.compare import Comparison as Comparison
from .results.compare import compare as compare
from .results.opened_run import Run as Run
from .results.opened_run import run_study as run_study
from .studies.study import Study as Study
from .tasks.catalog import catalog_names as catalog_names
from .tasks.episode import Episode as Episode
from .tasks.lesson import Lesson as Lesson
from .tasks.lesson import make_lesson as make_lesson
from .tasks.mapping import Example as Example
from .tasks.sources import GENERATORS as GENERATORS
from .tasks.task import Task as Task

__version__: str
