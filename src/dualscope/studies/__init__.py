"""Studies: grids that resume, scale out and never lose a result."""

from dualscope.studies.config import Study
from dualscope.studies.execute.runner import RunOutcome, run_study
from dualscope.studies.preset import preset_names
from dualscope.studies.run_folder.storage import Run

__all__ = ["Run", "RunOutcome", "Study", "preset_names", "run_study"]
