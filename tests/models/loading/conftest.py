"""The small model of the studies' tests."""

from tests.studies.conftest import model_folder

__all__ = ["model_folder"]
