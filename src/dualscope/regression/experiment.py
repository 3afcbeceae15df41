"""The experiments' common shape: settings in, results out."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from dualscope.registry import Registry
from dualscope.regression.results import Results
from dualscope.regression.training import Advance, silent
from dualscope.studies.config import Seeds


class Experiment(BaseModel):
    """An experiment is its settings; all its randomness comes from its seeds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: ClassVar[str] = ""
    quick_settings: ClassVar[dict[str, Any]] = {}  # for a look in seconds

    seeds: Seeds = (0, 1, 2)
    steps: int = Field(default=1000, ge=1)

    @classmethod
    def quick(cls, **settings: Any) -> "Experiment":
        """With few steps and seeds: the numbers are not to be trusted."""
        return cls(**{**cls.quick_settings, **settings})

    @property
    def work(self) -> int:
        """How many times ``run`` advances its progress."""
        return self.steps

    def run(self, advance: Advance = silent) -> Results:
        raise NotImplementedError


EXPERIMENTS: Registry[type[Experiment]] = Registry("regression experiment")
