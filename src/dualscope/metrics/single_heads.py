"""What single heads do in in-context learning: repeat what came before, and carry the task."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualscope.core.statistics import COSINE, SHARE
from dualscope.learners.hidden_states.function_vector import SHUFFLES, indirect_effects
from dualscope.metrics.case import Case, PerHead, PerQuery, Values
from dualscope.metrics.metric import Applies, Measure, metric

if TYPE_CHECKING:
    from dualscope.learners.bench import Bench
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


# Induction: does a head, at a token that was there before, look at what followed it then? (Olsson et al. 2022)


SEQUENCES, LONGEST = 20, 50  # how many, and the most random tokens before they are repeated


@torch.no_grad()
def induction_scores(model: Model, lesson: Lesson) -> Tensor:
    """On random tokens that are repeated in part: every head's attention from the last token to the one that followed
    its first occurrence, [sequences, layers, heads].
    """
    sequences, periods = repeated_sequences(model, lesson)
    asked = replace(
        lesson,
        queries=sequences,
        answers=(lesson.answers[0][:1],),
        labels=(0,) * len(sequences),
        query_ids=tuple(f"sequence:{i}" for i in range(len(sequences))),
        read_at="prompt-end",
        watched={},
    )
    weights = model.read(asked, want=frozenset({"attention"})).extras["attention_own"]
    # What followed the first occurrence stands one period before what comes next, and weights end with the last token.
    followers = weights.shape[-1] - torch.tensor(periods, device=weights.device)
    rows = torch.arange(len(weights), device=weights.device)
    return weights.movedim(-1, 1)[rows, followers]


def repeated_sequences(model: Model, lesson: Lesson) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
    """Random tokens, all different, and some of them again; with how many come before the first one is repeated.

    How many that is, and where it ends, are drawn anew for each: no fixed distance leads to the right place.
    """
    rng = np.random.default_rng([lesson.episode.seed, 11])
    known = min(len(model.tokenizer), model.hf.get_input_embeddings().num_embeddings)
    vocabulary = np.setdiff1d(np.arange(known), model.tokenizer.all_special_ids)
    longest = min(LONGEST, len(vocabulary), (model.max_positions - len(lesson.bos)) // 2)
    sequences, periods = [], []
    for _ in range(SEQUENCES):
        period = int(rng.integers(longest // 2 + 1, longest + 1))
        tokens = rng.permutation(vocabulary)[:period].tolist()
        sequences.append((*tokens, *tokens[: int(rng.integers(1, period))]))
        periods.append(period)
    return tuple(sequences), periods


PROMPTS = 20  # spare examples that indirect effects are taken of, as many as a function vector asks for
INDUCTION, EFFECT = "induction_score", "indirect_effect"


def read_heads(bench: Bench, case: Case, names: Collection[str]) -> dict[str, Tensor]:
    """Of in-context learning: [samples, layers, heads] each.

    With too few examples to take an effect of there is none; a function vector, which cannot do without, says so.
    """
    found: dict[str, Tensor] = {}
    if not case.is_reference:
        return found
    if INDUCTION in names:
        found[INDUCTION] = induction_scores(bench.model, bench.lesson)
    if EFFECT in names:
        prompts = min(PROMPTS, len(bench.spare or bench.lesson.training))
        if prompts >= SHUFFLES:
            found[EFFECT] = indirect_effects(bench, prompts)
    return found


of_heads = partial(metric, reading=read_heads, by_subset=False, default=False, per_head=True)


@of_heads(
    INDUCTION,
    "softmax weight from the last token to the one after its first occurrence",
    "how much a head looks at what followed the same token before, on random repeated sequences",
    applies=lambda case: INDUCTION in case.read,
    within=SHARE,
)
def induction_score(case: Case) -> Values:
    return PerHead(INDUCTION, case.read[INDUCTION])


@of_heads(
    EFFECT,
    "p(right label | head's mean output) - p(right label), after shuffled labels",
    "how much likelier the right label becomes when a head's mean output in context takes its output's place",
    applies=lambda case: EFFECT in case.read,
    within=COSINE,
)
def indirect_effect(case: Case) -> Values:
    return PerHead(EFFECT, case.read[EFFECT])


# Where the softmax weight of the read position goes, per head: the lambda of the split into contexts.


def _recorded(name: str) -> Applies:
    def applies(case: Case) -> bool:
        has_context = not case.is_baseline and case.has_attention and not case.is_gradient
        return has_context and name in case.trace.extras

    return applies


def _mass(name: str) -> Measure:
    return lambda case: PerQuery(name, case.trace.extras[name])


of_mass = partial(metric, within=SHARE, wants=frozenset({"mass"}))
for _name, _formula, _about in (
    ("demo_mass", "sum of softmax weights on the demonstrations", "share of attention that goes to the demonstrations"),
    ("bos_mass", "softmax weight on BOS", "share of attention that rests on the first token"),
):
    of_mass(_name, _formula, _about, applies=_recorded(_name))(_mass(_name))
