"""The experiments' common shape: settings in, results out."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from dualscope.core.registry import Registry
from dualscope.regression.results import Results
from dualscope.regression.training import Advance, silent
from dualscope.studies import config

MOST_SEEDS, LARGEST_SEED = 1000, 2**32 - 1


def _few(value: Any) -> Any:
    """Refused here, before a number becomes a list of so many seeds."""
    count = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(count, int) and count > MOST_SEEDS:
        raise ValueError(f"at most {MOST_SEEDS} seeds; for one seed of that number, write {count},")
    return value


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """A seed that is there twice would make intervals narrower than they are."""
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ValueError(f"seed {twice} is there twice; give each seed once")
    if len(seeds) > MOST_SEEDS:
        raise ValueError(f"at most {MOST_SEEDS} seeds, found {len(seeds)}")
    if max(seeds) > LARGEST_SEED:
        raise ValueError(f"a seed is at most {LARGEST_SEED}, found {max(seeds)}")
    return seeds


Seeds = Annotated[config.Seeds, BeforeValidator(_few), AfterValidator(_distinct)]


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
