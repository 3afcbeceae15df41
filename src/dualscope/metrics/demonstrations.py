"""Do both learners attend to the same demonstration tokens? Kendall's tau, and the nulls it should be held to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualscope.core.words import Control
from dualscope.metrics.case import Case
from dualscope.metrics.kendall import tau_b
from dualscope.metrics.metric import family
from dualscope.metrics.values import PerQuery, Values

if TYPE_CHECKING:
    from dualscope.tasks.lesson import DemonstrationTokens, Lesson

KENDALL_QUERIES = 64  # the first ones: tau over a thousand tokens varies little between queries
SHIFTS = 4
ELSEWHERE: frozenset[Control | None] = frozenset({"other-task", "redraw", "reorder"})
"""Controls under which a learner is taught another list of demonstrations."""


def shared_tokens(lesson: Lesson, recorded: int) -> tuple[list[int], list[int]] | None:
    """Places of the demonstrations' tokens in the context, and among the recorded ones of training.

    Prompt and label, the first token of each demonstration left out. Learners record the whole of every
    demonstration, all but its first token (steps of one token without BOS), or its label alone (a loss on labels).
    None where `recorded` fits none of these.
    """

    def first_of(layout: str, taught: DemonstrationTokens) -> int:
        return {"whole": 0, "no first": 1, "label": len(taught.prompt)}[layout]

    def size(taught: DemonstrationTokens) -> int:
        return len(taught.prompt) + len(taught.label)

    for layout in ("whole", "no first", "label"):
        if sum(size(taught) - first_of(layout, taught) for taught in lesson.training) == recorded:
            break
    else:
        return None
    in_context = {shown.id: size(shown) for shown in lesson.demonstrations}
    context, training, row = [], [], 0
    for taught in lesson.training:
        first = first_of(layout, taught)
        if taught.id in in_context:
            # with corrupted labels the two label words may differ in length
            for place in range(max(first, 1), min(size(taught), in_context[taught.id])):
                context.append(taught.start + place)
                training.append(row + place - first)
        row += size(taught) - first
    return context, training


def attention_of_update(recorded: Tensor, now: Tensor) -> Tensor:
    """Recorded vectors of the demonstration tokens . the vector at the read position.

    [layers, tokens, dim] and [queries, layers, dim] -> [queries, layers, tokens].
    """
    return torch.einsum("ltd,qld->qlt", recorded.double(), now.double())


def shifted(scores: Tensor, seed: int) -> list[Tensor]:
    """The scores moved around in a circle: as smooth along the text as they were, but no longer in its place."""
    items = scores.shape[-1]
    if items < 2:
        return [scores]
    offsets = np.random.default_rng([seed, 5]).integers(1, items, SHIFTS)
    return [scores.roll(int(offset), -1) for offset in offsets]


def _taus(case: Case, names: frozenset[str]) -> Iterator[Values]:
    assert case.lesson is not None
    records, extras = case.learned.log.records, case.trace.extras
    places = shared_tokens(case.lesson, records["queries"].shape[1])
    if places is None:
        return
    context, training = places
    some = slice(0, KENDALL_QUERIES)
    icl = case.reference.extras["context_scores"][some][..., context].double()  # [queries, layers, tokens]

    def update(record: str, extra: str) -> Tensor:
        return attention_of_update(records[record][:, training], extras[extra][some])

    gd = update("queries", "query_vectors") if names & {"kendall", "kendall_shift"} else icl
    generator = torch.Generator().manual_seed(
        int(np.random.SeedSequence([case.seed, 5]).generate_state(1)[0])
    )
    for name in names:
        if name == "kendall":
            tau = tau_b(icl, gd)
        elif name == "kendall_dual":
            tau = tau_b(icl, update("inputs", "layer_inputs"))
        elif name == "kendall_random":
            tau = tau_b(icl, torch.rand(icl.shape, generator=generator).to(icl))
        elif name == "kendall_shift":
            tau = torch.stack([tau_b(icl, moved) for moved in shifted(gd, case.seed)]).mean(0)
        else:
            tau = tau_b(icl, torch.arange(icl.shape[-1]).to(icl).expand_as(icl))
        values = torch.full((len(case.trace), tau.shape[1]), torch.nan, dtype=tau.dtype)
        values[some] = tau.cpu()  # the other queries are not measured, and n says so
        yield PerQuery(name, values, case.against.learning)


def _applies(case: Case) -> bool:
    return (
        case.is_pair
        and case.lesson is not None
        and case.learning.control not in ELSEWHERE
        and not (case.learning.control == "random-labels" and len(set(map(len, case.lesson.answers))) > 1)
        and {"queries", "inputs"} <= case.learned.log.records.keys()
        and "context_scores" in case.reference.extras
    )


_add = family(_taus, _applies)
for _name, _formula, _about in (
    (
        "kendall",
        "tau_b(sum_h k_t.q of ICL, sum_h q'_t.q of the fine-tuned model) over demonstration tokens t",
        "do both attend to the same demonstration tokens",
    ),
    ("kendall_dual", "kendall with layer inputs x'_t.x", "the same with the keys of the exact dual form"),
    ("kendall_random", "tau_b(ICL's scores, U[0, 1))", "baseline: random scores"),
    (
        "kendall_shift",
        "kendall with GD's scores moved around in a circle",
        "null: smooth scores in the wrong place",
    ),
    ("kendall_recency", "tau_b(ICL's scores, t)", "null: later tokens score higher, nothing else"),
):
    _add(_name, _formula, f"{_about} (first {KENDALL_QUERIES} queries)", default=False, wants=["kendall"])
