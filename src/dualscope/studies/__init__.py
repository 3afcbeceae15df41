"""Studies: grids that resume, scale out and never lose a result."""

from dualscope.studies.execute.runner import RunOutcome, execute_study
from dualscope.studies.run_folder.storage import RunFolder
from dualscope.studies.study import Study, preset_names

# Version 0.1 called them so, and its documentation took them from here; today `dualscope` itself has both names.
Run, run_study = RunFolder, execute_study

__all__ = ["Run", "RunFolder", "RunOutcome", "Study", "execute_study", "preset_names", "run_study"]
