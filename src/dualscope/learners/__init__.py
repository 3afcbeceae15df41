"""Ways to learn from demonstrations, by name, on any model."""

from importlib import import_module
from pkgutil import walk_packages

from dualscope.choosing.halving import Choice
from dualscope.core.options import Options
from dualscope.descent.delta import Delta
from dualscope.descent.direct_effect import direct_attn_out
from dualscope.descent.dual_records import Dual, Log
from dualscope.learners.bench import Bench
from dualscope.learners.ceilings.context_patches import ContextPatchLearner, StaticPatchLearner
from dualscope.learners.ceilings.distilled import KvAligned, KvDistilled
from dualscope.learners.chosen_settings import choose_settings
from dualscope.learners.controls import COMBINATORS, identify, role_of
from dualscope.learners.gradient.gd import Gd, GdAll, GdLinearized, GdTuned
from dualscope.learners.gradient.lcgd import Lcgd, LcgdClipped
from dualscope.learners.gradient.matched import GdMatched, LcgdMatched
from dualscope.learners.hidden_states.function_vector import FunctionVector
from dualscope.learners.hidden_states.kernel_regression import Kernel
from dualscope.learners.hidden_states.probe import Probe
from dualscope.learners.hidden_states.task_vector import TaskVector
from dualscope.learners.learner import LEARNERS, Change, Learned, Learner, Result
from dualscope.learners.null_learners import Dilution, NullContext, ZeroShotOffset
from dualscope.learners.prompted import InContext, ZeroShot

__all__ = [
    "COMBINATORS",
    "LEARNERS",
    "Bench",
    "Change",
    "Choice",
    "ContextPatchLearner",
    "Delta",
    "Dilution",
    "Dual",
    "FunctionVector",
    "Gd",
    "GdAll",
    "GdLinearized",
    "GdMatched",
    "GdTuned",
    "InContext",
    "Kernel",
    "KvAligned",
    "KvDistilled",
    "Lcgd",
    "LcgdClipped",
    "LcgdMatched",
    "Learned",
    "Learner",
    "Log",
    "NullContext",
    "Options",
    "Probe",
    "Result",
    "StaticPatchLearner",
    "TaskVector",
    "ZeroShot",
    "ZeroShotOffset",
    "choose_settings",
    "direct_attn_out",
    "identify",
    "role_of",
]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)  # a learner is one file here: it is named nowhere else
