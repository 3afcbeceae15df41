"""What a training run is: its sizes, its schedule, its seed. Plain dataclasses, so that the loop needs torch alone."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dualscope.core.errors import InputError
from dualscope.tasks.synthetic.generated_words import LEXICON
from dualscope.training.corpus import Mixture

LARGEST_SEED = 2**32 - 1
MOST = {"steps": 10**9, "batch": 2**20, "length": 2**20, "layers": 1024, "width": 2**16, "heads": 2**12}
MOST_TOKENS = 2**26  # of a step: far beyond what a small model is trained with
LARGEST_FACTOR = 4096.0  # of ``balance``, and 1 over it the smallest: weights times it still fit float16


def check_balance(factors: Sequence[float], layers: int) -> None:
    """A factor a layer, each of a size that float16 weights survive."""
    if len(factors) != layers or not all(1 / LARGEST_FACTOR <= f <= LARGEST_FACTOR for f in factors):
        raise InputError(
            f"balance must be {layers} factors from 1/{LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}, one a layer; "
            f"found {list(factors)}"
        )


@dataclass(frozen=True)
class Settings:
    """The shipped model's sizes are the defaults; its card has the rest.

    The first ``short_steps`` steps have twice as many sequences of half the length: learning in context appears
    sooner on them. With ``minutes`` the learning rate falls with the time that has passed where that is ahead of the
    steps, and training ends with it, so that a machine of unknown speed is used fully and never overrun.
    """

    steps: int = 9000
    short_steps: int = 4000
    batch: int = 64
    length: int = 1024
    layers: int = 6
    width: int = 192
    heads: int = 6
    lr: float = 1e-3
    warmup: int = 300
    weight_decay: float = 0.05
    clip: float = 1.0
    all_tokens: float = 0.25  # weight of the loss on all tokens, beside that on label words
    seed: int = 0
    minutes: float | None = None
    attention: dict[str, Any] | None = None  # an attention kind: its name and options
    balance: tuple[float, ...] | None = None  # a factor for each layer (``training.balance``), after training
    mixture: Mixture = field(default_factory=Mixture)

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise InputError(f"{name} must be at least 1 and at most {most:,}, found {getattr(self, name)}")
        if self.batch * self.length > MOST_TOKENS:
            raise InputError(
                f"batch x length must be at most {MOST_TOKENS:,} tokens a step, found {self.batch * self.length:,}"
            )
        for name in ("lr", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a number above 0, found {value}")
        if self.short_steps < 0:
            raise InputError(f"short_steps must be 0 or more, found {self.short_steps}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"seed must be from 0 to {LARGEST_SEED}, found {self.seed}")
        if self.width % self.heads:
            raise InputError(f"width must be a multiple of heads, found width {self.width} and {self.heads} heads")
        if self.balance is not None:
            check_balance(self.balance, self.layers)
        if self.length < 64:
            raise InputError(f"length must be at least 64 tokens, so that two examples fit; found {self.length}")

    @property
    def vocabulary(self) -> int:
        """Rounded up to a multiple of 64, which matrix units like; the last ids are never used."""
        return -(-len(LEXICON) // 64) * 64

    def shape(self, step: int) -> tuple[int, int]:
        """Sequences and their length at a step."""
        return (2 * self.batch, self.length // 2) if step < self.short_steps else (self.batch, self.length)

    def progress(self, step: int, seconds: float) -> float:
        """How much of the training is behind us, 0 to 1."""
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(max(step / self.steps, by_time), 1.0)

    def rate(self, step: int, progress: float) -> float:
        """Linear warm-up, then a cosine down to a fiftieth."""
        cosine = 0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2
        return self.lr * min((step + 1) / max(self.warmup, 1), 1.0) * cosine

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
