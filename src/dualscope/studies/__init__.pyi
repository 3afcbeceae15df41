from .execute.runner import RunOutcome as RunOutcome
from .execute.runner import execute_study as execute_study
from .run_folder.storage import RunFolder as RunFolder
from .study import Study as Study
from .study import preset_names as preset_names

Run = RunFolder
run_study = execute_study
