"""Ways to learn from demonstrations, by name, on any model."""

from dualscope.descent.delta import Delta
from dualscope.descent.direct_effect import direct_attn_out
from dualscope.descent.dual import Dual
from dualscope.learners.all_weights import GdAll
from dualscope.learners.bench import Bench, options_of
from dualscope.learners.ceilings import GdRedraw, GdReorder, InContextRedraw, InContextReorder
from dualscope.learners.clipped import LcgdClipped
from dualscope.learners.dilution import Dilution
from dualscope.learners.gd import Gd
from dualscope.learners.in_context import InContext
from dualscope.learners.lcgd import Lcgd
from dualscope.learners.learner import LEARNERS, Learned, Learner, Log, Options
from dualscope.learners.linearized import GdLinearized
from dualscope.learners.matched import GdMatched, LcgdMatched
from dualscope.learners.nulls import GdOtherTask, GdRandomLabels, NullContext, RandomUpdate
from dualscope.learners.probe import Probe
from dualscope.learners.rate import Choice, choose_rate
from dualscope.learners.zero_shot import ZeroShot, ZeroShotOffset

__all__ = [
    "LEARNERS",
    "Bench",
    "Choice",
    "Delta",
    "Dilution",
    "Dual",
    "Gd",
    "GdAll",
    "GdLinearized",
    "GdMatched",
    "GdOtherTask",
    "GdRandomLabels",
    "GdRedraw",
    "GdReorder",
    "InContext",
    "InContextRedraw",
    "InContextReorder",
    "Lcgd",
    "LcgdClipped",
    "LcgdMatched",
    "Learned",
    "Learner",
    "Log",
    "NullContext",
    "Options",
    "Probe",
    "RandomUpdate",
    "ZeroShot",
    "ZeroShotOffset",
    "choose_rate",
    "direct_attn_out",
    "options_of",
]
