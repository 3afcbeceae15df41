"""The small study that tests of studies run."""

from tests.hostile.damaged import made, responded
from tests.studies.conftest import fields, model_folder, task_files

__all__ = ["fields", "made", "model_folder", "responded", "task_files"]
