"""Studies: grids that resume, scale out and never lose a result."""

from dualscope.studies.config import Study, preset_names
from dualscope.studies.runner import Result, run_study
from dualscope.studies.store import Run

__all__ = ["Result", "Run", "Study", "preset_names", "run_study"]
