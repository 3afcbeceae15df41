"""Ways to learn from demonstrations, by name, on any model."""

from dualscope.learners.bench import Bench, options_of
from dualscope.learners.delta import Delta
from dualscope.learners.gd import Gd
from dualscope.learners.in_context import InContext
from dualscope.learners.lcgd import Lcgd
from dualscope.learners.learner import LEARNERS, Learned, Learner, Log, Options
from dualscope.learners.zero_shot import ZeroShot, ZeroShotOffset

__all__ = [
    "LEARNERS",
    "Bench",
    "Delta",
    "Gd",
    "InContext",
    "Lcgd",
    "Learned",
    "Learner",
    "Log",
    "Options",
    "ZeroShot",
    "ZeroShotOffset",
    "options_of",
]
