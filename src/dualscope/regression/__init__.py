"""In-context regression with small transformers: do trained layers compute gradient descent?

problems            linear functions, classes of functions, Gaussian processes, linear dynamics, shifts
architectures/      linear attention and GPT-2 blocks, one copy a seed; gradient descent written as their weights
training, spectral  one loop for all copies, with checkpoints, CUDA graphs and a curriculum; orthogonal steps
baselines           least squares, lasso, neighbours, trees, networks, Newton's iteration; how alike learners are
probes, emergence   what is measured, and when learning in context appears
results, results_folder   tidy rows, tables and checks; a run folder, and the runs that come with the package
experiments/        the experiments
"""

from typing import Any

from dualscope.regression.experiment import EXPERIMENTS, Experiment
from dualscope.regression.experiments import (
    Ahn,
    Akyurek,
    Cheng,
    Garg,
    Mesa,
    MomentumLanguageModels,
    Newton,
    Variants,
    VonOswald,
)
from dualscope.regression.results import Check, Figure, Results, ResultTable

__all__ = [
    "EXPERIMENTS",
    "Ahn",
    "Akyurek",
    "Check",
    "Cheng",
    "Experiment",
    "Figure",
    "Garg",
    "Mesa",
    "MomentumLanguageModels",
    "Newton",
    "ResultTable",
    "Results",
    "Variants",
    "VonOswald",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    """Run folders need pyarrow, which experiments do not: a machine that only computes can do without."""
    if name in ("load", "save"):
        from dualscope.regression import results_folder as folder

        return getattr(folder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
