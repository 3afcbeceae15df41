"""In-context regression with small transformers: do trained layers compute gradient descent?

data, processes   problems: linear, Gaussian processes, linear dynamics
transformer       attention-only transformers (linear, kernel, softmax), one copy a seed
training          one loop for all copies
constructed       gradient descent written as a transformer's weights
comparison        predictions and sensitivities of two learners
results, folder   tidy rows, tables and checks; a run folder
vonoswald, ahn, cheng, mesa, akyurek, variants, language   the experiments
"""

from dualscope.regression.ahn import Ahn
from dualscope.regression.akyurek import Akyurek
from dualscope.regression.cheng import Cheng
from dualscope.regression.experiment import EXPERIMENTS, Experiment
from dualscope.regression.folder import load, save
from dualscope.regression.language import MomentumLanguageModels, momentum_language_models
from dualscope.regression.mesa import Mesa
from dualscope.regression.results import Check, Results, Table
from dualscope.regression.variants import Variants
from dualscope.regression.vonoswald import VonOswald

__all__ = [
    "EXPERIMENTS",
    "Ahn",
    "Akyurek",
    "Check",
    "Cheng",
    "Experiment",
    "Mesa",
    "MomentumLanguageModels",
    "Results",
    "Table",
    "Variants",
    "VonOswald",
    "load",
    "momentum_language_models",
    "save",
]
