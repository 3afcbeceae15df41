"""The small study that tests of studies run."""

from tests.studies.conftest import fields, model_folder, task_files

__all__ = ["fields", "model_folder", "task_files"]
