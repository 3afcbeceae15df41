"""What single heads do in in-context learning: repeat what came before, and carry the task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dualscope.core.statistics import COSINE, SHARE
from dualscope.learners.hidden_states.function_vector import SHUFFLES, indirect_effects
from dualscope.learners.hidden_states.induction import induction_scores
from dualscope.metrics.case import Case
from dualscope.metrics.metric import metric
from dualscope.metrics.values import PerHead, Values

if TYPE_CHECKING:
    from torch import Tensor

    from dualscope.learners.bench import Bench

PROMPTS = 20  # spare examples that indirect effects are taken of, as many as a function vector asks for
INDUCTION, EFFECT = "induction_score", "indirect_effect"


def measure_heads(bench: Bench, names: Iterable[str]) -> dict[str, Tensor]:
    """Those of the named metrics that are of heads: [samples, layers, heads] each.

    With too few examples to take an effect of there is none; a function vector, which cannot do without, says so.
    """
    found = {}
    asked = set(names)
    if INDUCTION in asked:
        found[INDUCTION] = induction_scores(bench.model, bench.lesson)
    if EFFECT in asked:
        prompts = min(PROMPTS, len(bench.spare or bench.lesson.training))
        if prompts >= SHUFFLES:
            found[EFFECT] = indirect_effects(bench, prompts)
    return found


@metric(
    INDUCTION,
    "softmax weight from the last token to the one after its first occurrence",
    "how much a head looks at what followed the same token before, on random repeated sequences",
    applies=lambda case: INDUCTION in case.heads,
    within=SHARE,
    by_subset=False,
    default=False,
    per_head=True,
)
def induction_score(case: Case) -> Values:
    return PerHead(INDUCTION, case.heads[INDUCTION])


@metric(
    EFFECT,
    "p(right label | head's mean output) - p(right label), after shuffled labels",
    "how much likelier the right label becomes when a head's mean output in context takes its output's place",
    applies=lambda case: EFFECT in case.heads,
    within=COSINE,
    by_subset=False,
    default=False,
    per_head=True,
)
def indirect_effect(case: Case) -> Values:
    return PerHead(EFFECT, case.heads[EFFECT])
