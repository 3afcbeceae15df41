"""The small study that tests of studies run."""

import os

from tests.hostile.damaged import made, responded
from tests.studies.conftest import fields, model_folder, task_files

__all__ = ["fields", "made", "model_folder", "responded", "task_files"]

# Programs are started again and again here: they need not compile our files each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
