"""What is chosen before cells can be computed: a job each, that a worker does and a run keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dualscope.core.canonical import fingerprint
from dualscope.core.spec import ModelSpec
from dualscope.core.words import GdDemonstrations


@dataclass(frozen=True)
class Choosing:
    """Per model and task, on the trained variant, over the study's seeds."""

    model: ModelSpec
    task: str
    data: str
    seeds: tuple[int, ...]
    shots: int
    queries: int
    balanced: bool
    gd_demonstrations: GdDemonstrations

    @property
    def key(self) -> str:
        return fingerprint({**asdict(self), "model": self.model.facts})


@dataclass(frozen=True)
class RateJob(Choosing):
    """A learning rate to be chosen."""

    def __str__(self) -> str:
        return f"{self.model.name} · {self.task} · learning rate over {len(self.seeds)} seeds"
