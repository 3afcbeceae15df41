"""What a learner predicts, and how its predictions agree with the reference's.

C is the set of queries a learner predicts correctly, D the set whose prediction differs from zero-shot's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dualscope.core.spec import ZERO_SHOT
from dualscope.core.statistics import COSINE, SHARE
from dualscope.metrics.case import Case
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import always, family
from dualscope.metrics.values import PerQuery, Pooled, Values


def rec2ftp(case: Case) -> tuple[Tensor, Tensor]:
    """Members of (C_icl & C_gd) - C_zs, and of C_gd - C_zs: [queries] each, boolean."""
    recalled = case.trace.correct & ~case.zero_shot.correct
    return recalled & case.reference.correct, recalled


def changes(case: Case) -> tuple[Tensor, Tensor]:
    """Members of D_icl and of D_gd."""
    start = case.zero_shot.predictions
    return case.reference.predictions != start, case.trace.predictions != start


def jaccards(case: Case) -> dict[str, tuple[Tensor, Tensor]]:
    """Members of the intersection and of the union, for each of the four."""
    icl, gd = changes(case)
    right_icl, right_gd = case.reference.correct, case.trace.correct

    def both_either(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left & right, left | right

    same = case.reference.predictions == case.trace.predictions
    return {
        "jaccard": both_either(icl, gd),
        "jaccard_correct": both_either(icl & right_icl, gd & right_gd),
        "jaccard_incorrect": both_either(icl & ~right_icl, gd & ~right_gd),
        "jaccard_same": (icl & gd & same, icl | gd),
    }


def corrected_jaccard(sums: np.ndarray) -> np.ndarray:
    """From the sums of (D_icl & D_gd, D_icl, D_gd, 1): 0 is what two independent sets of these sizes give.

    >>> float(corrected_jaccard(np.array([10.0, 10.0, 10.0, 100.0])))
    1.0
    >>> float(corrected_jaccard(np.array([1.0, 10.0, 10.0, 100.0])))
    0.0
    """
    both, icl, gd, count = np.moveaxis(np.asarray(sums, float), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = icl * gd / count
        observed, expected = both / (icl + gd - both), chance / (icl + gd - chance)
        found: np.ndarray = (observed - expected) / (1 - expected)
        return found


def label_changes(case: Case) -> tuple[Tensor, Tensor]:
    """How the log-probability of each class moved, against the mean over classes: [queries, classes] twice.

    What all classes gain alike is left out: it says that labels became likelier, not which.
    """

    def moved(after: Tensor) -> Tensor:
        change = wide(after) - wide(case.zero_shot.label_logprobs)
        return change - change.mean(-1, keepdim=True)

    return moved(case.reference.label_logprobs), moved(case.trace.label_logprobs)


def pooled_correlation(sums: np.ndarray) -> np.ndarray:
    """Pearson's r from the sums of (1, then x, y, xx, yy, xy of every class), each class about its own mean."""
    count = sums[..., :1]
    x, y, xx, yy, xy = np.split(sums[..., 1:], 5, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        both = (xy - x * y / count).sum(-1)
        left, right = (xx - x * x / count).sum(-1), (yy - y * y / count).sum(-1)
        # rounding leaves a residue where nothing varies at all; it is no correlation
        varies = (left > 1e-12 * xx.sum(-1)) & (right > 1e-12 * yy.sum(-1))
        return np.where(varies, both / np.sqrt(np.where(varies, left * right, np.nan)), np.nan)


def _alone(case: Case, names: frozenset[str]) -> Iterator[Values]:
    trace = case.trace
    if "accuracy" in names:
        yield PerQuery("accuracy", trace.correct)
    if "accuracy_at_layer" in names and trace.label_logprobs_at_layer is not None:
        right = trace.label_logprobs_at_layer.argmax(-1) == trace.labels[:, None]
        yield PerQuery("accuracy_at_layer", right, over_layers="none")
    if "predicted_share" in names:
        for index in range(trace.label_logprobs.shape[-1]):
            word = case.lesson.episode.task.labels[index] if case.lesson else str(index)
            yield PerQuery("predicted_share", trace.predictions == index, reference=word)
    gained = trace.correct.double() - case.zero_shot.correct.double()
    for name in names & {"gd_learned", "icl_learned", "null_learned"}:
        yield PerQuery(name, gained, reference=ZERO_SHOT)
    if "changed" in names:
        yield PerQuery("changed", trace.predictions != case.zero_shot.predictions, reference=ZERO_SHOT)


def _paired(case: Case, names: frozenset[str]) -> Iterator[Values]:
    sets = {"rec2ftp": rec2ftp(case)} | jaccards(case)
    for name in sets.keys() & names:
        members, among = sets[name]
        # undefined outside the denominator's set, so that the mean is the share, also of any resample
        yield PerQuery(name, torch.where(among, members.double(), torch.nan), case.against.learning)
    if "jaccard_corrected" in names:
        icl, gd = changes(case)
        parts = torch.stack([icl & gd, icl, gd, torch.ones_like(icl)], -1)
        yield Pooled("jaccard_corrected", parts, corrected_jaccard, case.against.learning)
    if "label_change_correlation" in names:
        x, y = label_changes(case)
        parts = torch.cat([torch.ones_like(x[:, :1]), x, y, x * x, y * y, x * y], -1)
        yield Pooled("label_change_correlation", parts, pooled_correlation, case.against.learning)


_add = family(_alone, always, SHARE, by_subset=False)
_add("accuracy", "|C| / queries", "share of queries predicted correctly", title="Accuracy", needs_gold=True)
_add(
    "accuracy_at_layer",
    "accuracy of argmax unembed(norm(residual_l))",
    "accuracy read off each layer's residual (early exit)",
    wants=["exits"],
    applies=lambda case: case.trace.label_logprobs_at_layer is not None,
    needs_gold=True,
)
_add(
    "predicted_share",
    "|prediction = k| / queries",
    "histogram of predicted labels; `reference` is the label word",
)
_add(
    "gd_learned",
    "accuracy - zero-shot accuracy",
    "what the gradient learner gained over zero-shot",
    applies=lambda case: case.is_gradient or not case.has_attention,
    within=COSINE,
    needs_gold=True,
)
_add(
    "icl_learned",
    "accuracy - zero-shot accuracy",
    "what the context gained over zero-shot",
    applies=lambda case: case.is_reference,
    within=COSINE,
    needs_gold=True,
)
_add(
    "null_learned",
    "accuracy - zero-shot accuracy",
    "what a control that should teach nothing gained: where its interval is above 0, it is not a null here",
    applies=lambda case: case.own.role == "null",
    within=COSINE,
    needs_gold=True,
)
_add(
    "changed",
    "|D| / queries",
    "share of queries whose prediction differs from zero-shot's",
    applies=lambda case: not case.is_baseline,
)
_add = family(_paired, lambda case: case.is_pair, SHARE, by_subset=False)
_add(
    "rec2ftp",
    "|(C_icl & C_gd) - C_zs| / |C_gd - C_zs|",
    "of what GD newly gets right, the share ICL gets right too",
    title="Newly right together",
    needs_gold=True,
)
_add(
    "jaccard",
    "|D_icl & D_gd| / |D_icl | D_gd|",
    "overlap of the queries whose prediction changed",
    title="Changed together",
)
_add(
    "jaccard_correct",
    "jaccard of the changes to a correct label",
    "overlap of the changes for the better",
    title="Changed together, rightly",
    needs_gold=True,
)
_add(
    "jaccard_incorrect",
    "jaccard of the changes to an incorrect label",
    "overlap of the changes to a wrong label",
    title="Changed together, wrongly",
    needs_gold=True,
)
_add(
    "jaccard_same",
    "|changed by both to the same label| / |D_icl | D_gd|",
    "overlap that asks for the same new label (the published code)",
    title="Changed to the same label",
)
_add(
    "jaccard_corrected",
    "(J - J_e) / (1 - J_e), J_e = e / (|D_icl| + |D_gd| - e), e = |D_icl| |D_gd| / queries",
    "jaccard above what sets of these sizes share by chance",
    within=(-math.inf, 1.0),
    title="Changed together, above chance",
)
_add(
    "label_change_correlation",
    "corr(c.logp_k - z.logp_k, g.logp_k - z.logp_k), mean over classes and per-class mean over queries removed",
    "do label preferences move alike, query by query",
    within=COSINE,
    title="Label probabilities move together",
)
