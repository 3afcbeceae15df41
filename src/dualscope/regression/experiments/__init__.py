"""The experiments, a file each; each is registered in ``EXPERIMENTS``."""

from dualscope.regression.experiments.ahn import Ahn
from dualscope.regression.experiments.akyurek import Akyurek
from dualscope.regression.experiments.cheng import Cheng
from dualscope.regression.experiments.garg import Garg
from dualscope.regression.experiments.mesa import Mesa
from dualscope.regression.experiments.momentum import MomentumLanguageModels
from dualscope.regression.experiments.newton import Newton
from dualscope.regression.experiments.softmax_layer import OneSoftmaxLayer
from dualscope.regression.experiments.variants import Variants
from dualscope.regression.experiments.vonoswald import VonOswald

__all__ = [
    "Ahn",
    "Akyurek",
    "Cheng",
    "Garg",
    "Mesa",
    "MomentumLanguageModels",
    "Newton",
    "OneSoftmaxLayer",
    "Variants",
    "VonOswald",
]
