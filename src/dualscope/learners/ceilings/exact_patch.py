"""The context as a change of weights: exact, of any model, so it shows that reading is right and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualscope.core.errors import InputError
from dualscope.core.options import Options
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.models.context_patch import patch_of

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench


@LEARNERS.register("context-patch")
class ContextPatchLearner(Learner[Options]):
    """In-context learning itself, written as a change of the MLP's weights for each query: exact, decides nothing."""

    role = "ceiling"
    ranked = False  # an identity of every model

    def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
        if bench.lesson.read_at != "prompt-end":
            raise InputError(
                "context-patch is made where the label is predicted, and here traces are read at the first label's "
                "token; use read_at: prompt-end"
            )
        patch = patch_of(bench.model, bench.lesson, bench.prefix)
        with patch.applied(bench.model):
            trace = bench.model.read(bench.lesson, want=bench.read_want)
        return Learned(trace, patch, of_queries=True)
