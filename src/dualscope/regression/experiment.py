"""The experiments' common shape: settings in, results out."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from dualscope.core import options
from dualscope.core.registry import Registry
from dualscope.models.loading.device_and_precision import resolve
from dualscope.regression.architectures.gpt2 import Size
from dualscope.regression.emergence import LEVEL, note_curve, note_training
from dualscope.regression.problems import FunctionClass
from dualscope.regression.results import Results
from dualscope.regression.training import (
    ALL,
    LONGEST,
    Advance,
    Curriculum,
    Schedule,
    TrainedLearner,
    Workplace,
    silent,
    train_on_prompts,
)

SIZES = Path(__file__).parent / "experiments" / "sizes.yaml"
MOST_SEEDS, LARGEST_SEED = 1000, 2**32 - 1


def _few(value: Any) -> Any:
    """Refused here, before a number becomes a list of so many seeds."""
    count = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(count, int) and count > MOST_SEEDS:
        raise ValueError(f"at most {MOST_SEEDS} seeds; for one seed of that number, write {count},")
    return value


def _distinct(given: tuple[int, ...]) -> tuple[int, ...]:
    """A seed that is there twice would make intervals narrower than they are."""
    if len(set(given)) < len(given):
        twice = next(seed for seed in given if given.count(seed) > 1)
        raise ValueError(f"seed {twice} is there twice; give each seed once")
    if len(given) > MOST_SEEDS:
        raise ValueError(f"at most {MOST_SEEDS} seeds, found {len(given)}")
    if max(given) > LARGEST_SEED:
        raise ValueError(f"a seed is at most {LARGEST_SEED}, found {max(given)}")
    return given


Seeds = Annotated[options.Seeds, BeforeValidator(_few), AfterValidator(_distinct)]


Steps = Annotated[int, Field(ge=1, le=100_000_000)]  # a type, because a default of its own would drop a field's bounds


class Experiment(BaseModel):
    """An experiment is its settings; all its randomness comes from its seeds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    """Whether it trains GPT-2 blocks, which a compiler makes faster."""

    seeds: Seeds = (0, 1, 2)
    steps: Steps = 1000
    device: str = "cpu"
    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The longest that one training may take; its rate then falls with the clock."""
    compiled: bool = False

    @classmethod
    def quick(cls, **settings: Any) -> Self:
        """With few steps and seeds: the numbers are not to be trusted."""
        return cls(**{**_sizes()[cls.called()]["quick"], **settings})

    @classmethod
    def full(cls, **settings: Any) -> Self:
        """At the size of the papers, in minutes on a large GPU."""
        return cls(**{**_sizes()[cls.called()]["full"], **settings})

    @property
    def trainings(self) -> int:
        """How many there are, one after the other."""
        return 1

    @property
    def work(self) -> int:
        """How many times ``run`` advances its progress."""
        return self.steps * self.trainings

    def run(self, advance: Advance = silent, checkpoints: Path | None = None, conclude: bool = True) -> Results:
        """All of it; what is found in ``checkpoints`` is gone on with. A part of an experiment concludes nothing."""
        results = Results(self.name)
        self.carry_out(results, Workplace(resolve(self.device), advance, checkpoints, self.compiled))
        if conclude:
            self.conclude(results)
        return results

    @abstractmethod
    def carry_out(self, results: Results, place: Workplace) -> None:
        """Train and measure."""

    def conclude(self, results: Results) -> None:
        """What follows from rows alone, for experiments whose arms or seeds may be measured apart and joined."""

    @classmethod
    def called(cls) -> str:
        return next(name for name in EXPERIMENTS if EXPERIMENTS[name] is cls)

    @property
    def name(self) -> str:
        return self.called()


class PromptExperiment(Experiment):
    """One of GPT-2 blocks that are trained on prompts of functions: few inputs and short prompts come first."""

    compiles: ClassVar[bool] = True

    steps: Steps = 1500
    d: int = 5
    points: int = 11  # 2 d examples and a query
    layers: int = 4
    width: int = 64
    heads: int = 4
    batch: int = 128
    rate: float = 3e-3
    warmup: int = 100
    curriculum: int = 400  # steps until inputs and prompts have their full size

    def trained(
        self,
        results: Results,
        functions: FunctionClass,
        place: Workplace,
        series: str,
        panel: str = "training",
        name: str | None = None,
        *,
        points: int | None = None,
        steps: int | None = None,
        size: Size | None = None,
        rate: float | None = None,
        attention: Mapping[str, Any] | None = None,
    ) -> tuple[TrainedLearner, list[int | None]]:
        """A learner, all seeds at once, and the step at which each begins to learn in context. Both errors in training
        are rows of ``series``; ``name`` is what notes call the training.
        """
        steps, rate = steps or self.steps, rate or self.rate
        learned = train_on_prompts(
            functions,
            points or self.points,
            self.seeds,
            size or Size(self.layers, self.width, self.heads),
            Schedule(steps, rate, 1.0, rate / 50, self.warmup, self.minutes),
            self.batch,
            place,
            Curriculum(self.curriculum),
            attention,
            max(1, steps // 120),
        )
        appeared = note_training(results, learned.training, LONGEST, LEVEL, series, self.seeds, panel)
        note_curve(results, learned.training, ALL, series, self.seeds, panel)
        results.notes[f"steps, {name or series}"] = learned.training.steps
        return learned, appeared


EXPERIMENTS: Registry[type[Experiment]] = Registry("regression experiment")


@cache
def _sizes() -> dict[str, dict[str, dict[str, Any]]]:
    """experiment -> quick, full -> settings."""
    found: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(SIZES.read_text(encoding="utf-8"))
    return found
