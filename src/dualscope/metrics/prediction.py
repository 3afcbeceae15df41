"""What a learner predicts, and how its predictions agree with the reference's.

C is the set of queries a learner predicts correctly, D the set whose prediction differs from zero-shot's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dualscope.core.spec import ZERO_SHOT
from dualscope.core.statistics import COSINE, SHARE, SIZE
from dualscope.metrics.case import Case, PerQuery, Pooled, Values
from dualscope.metrics.cosine import wide
from dualscope.metrics.metric import Applies, Measure, metric


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


of_predictions = partial(metric, by_subset=False)
of_pairs = partial(of_predictions, applies=lambda case: case.is_pair)


@of_predictions(
    "accuracy", "|C| / queries", "share of queries predicted correctly", within=SHARE, title="Accuracy", needs_gold=True
)
def accuracy(case: Case) -> Values:
    return PerQuery("accuracy", case.trace.correct)


@of_predictions(
    "accuracy_at_layer",
    "accuracy of argmax unembed(norm(residual_l))",
    "accuracy read off each layer's residual (early exit)",
    applies=lambda case: case.trace.label_logprobs_at_layer is not None,
    within=SHARE,
    wants=frozenset({"exits"}),
    needs_gold=True,
)
def accuracy_at_layer(case: Case) -> Values:
    exits = case.trace.label_logprobs_at_layer
    assert exits is not None
    right = exits.argmax(-1) == case.trace.labels[:, None]
    return PerQuery("accuracy_at_layer", right, over_layers="none")


@of_predictions(
    "predicted_share",
    "|prediction = k| / queries",
    "histogram of predicted labels; `reference` is the label word",
    within=SHARE,
)
def predicted_share(case: Case) -> Iterator[Values]:
    for index in range(case.trace.label_logprobs.shape[-1]):
        word = case.lesson.episode.task.labels[index] if case.lesson else str(index)
        yield PerQuery("predicted_share", case.trace.predictions == index, reference=word)


def gain(case: Case) -> Tensor:
    """1 where a query is newly right, -1 where it is newly wrong: [queries]."""
    return case.trace.correct.double() - case.zero_shot.correct.double()


GAINED: dict[str, tuple[str, Applies]] = {
    "gd_learned": (
        "what the gradient learner gained over zero-shot",
        lambda case: case.is_gradient or not case.has_attention,
    ),
    "icl_learned": ("what the context gained over zero-shot", lambda case: case.is_reference),
    "null_learned": (
        "what a control that should teach nothing gained: where its interval is above 0, it is not a null here",
        lambda case: case.own.role == "null",
    ),
}


def _gained(name: str) -> Measure:
    return lambda case: PerQuery(name, gain(case), reference=ZERO_SHOT)


for _name, (_about, _applies) in GAINED.items():
    of_gain = of_predictions(
        _name, "accuracy - zero-shot accuracy", _about, applies=_applies, within=COSINE, needs_gold=True
    )
    of_gain(_gained(_name))


@of_predictions(
    "changed",
    "|D| / queries",
    "share of queries whose prediction differs from zero-shot's",
    applies=lambda case: not case.is_baseline,
    within=SHARE,
)
def changed(case: Case) -> Values:
    return PerQuery("changed", case.trace.predictions != case.zero_shot.predictions, reference=ZERO_SHOT)


def _share(case: Case, name: str, sets: tuple[Tensor, Tensor]) -> Values:
    """NaN outside the denominator's set, so that the mean is the share, also of any resample."""
    members, among = sets
    return PerQuery(name, torch.where(among, members.double(), torch.nan), case.against.learning)


@of_pairs(
    "rec2ftp",
    "|(C_icl & C_gd) - C_zs| / |C_gd - C_zs|",
    "of what GD newly gets right, the share ICL gets right too",
    within=SHARE,
    title="Newly right together",
    needs_gold=True,
)
def share_recalled(case: Case) -> Values:
    return _share(case, "rec2ftp", rec2ftp(case))


JACCARDS = {
    "jaccard": (
        "|D_icl & D_gd| / |D_icl | D_gd|",
        "overlap of the queries whose prediction changed",
        "Changed together",
    ),
    "jaccard_correct": (
        "jaccard of the changes to a correct label",
        "overlap of the changes for the better",
        "Changed together, rightly",
    ),
    "jaccard_incorrect": (
        "jaccard of the changes to an incorrect label",
        "overlap of the changes to a wrong label",
        "Changed together, wrongly",
    ),
    "jaccard_same": (
        "|changed by both to the same label| / |D_icl | D_gd|",
        "overlap that asks for the same new label (the published code)",
        "Changed to the same label",
    ),
}


def _overlap(name: str) -> Measure:
    return lambda case: _share(case, name, case.shared(jaccards)[name])


for _name, (_formula, _about, _title) in JACCARDS.items():
    asks_gold = _name in ("jaccard_correct", "jaccard_incorrect")
    of_pairs(_name, _formula, _about, within=SHARE, title=_title, needs_gold=asks_gold)(_overlap(_name))


@of_pairs(
    "jaccard_corrected",
    "(J - J_e) / (1 - J_e), J_e = e / (|D_icl| + |D_gd| - e), e = |D_icl| |D_gd| / queries",
    "jaccard above what sets of these sizes share by chance",
    within=(-math.inf, 1.0),
    title="Changed together, above chance",
)
def jaccard_corrected(case: Case) -> Values:
    icl, gd = changes(case)
    parts = torch.stack([icl & gd, icl, gd, torch.ones_like(icl)], -1)
    return Pooled("jaccard_corrected", parts, corrected_jaccard, case.against.learning)


@of_pairs(
    "label_change_correlation",
    "corr(c.logp_k - z.logp_k, g.logp_k - z.logp_k), mean over classes and per-class mean over queries removed",
    "do label preferences move alike, query by query",
    within=COSINE,
    title="Label probabilities move together",
)
def label_change_correlation(case: Case) -> Values:
    x, y = label_changes(case)
    parts = torch.cat([torch.ones_like(x[:, :1]), x, y, x * x, y * y, x * y], -1)
    return Pooled("label_change_correlation", parts, pooled_correlation, case.against.learning)


PARTITION = {
    "partition_same_right": "changed by both to the same label, which is right",
    "partition_same_wrong": "changed by both to the same label, which is wrong",
    "partition_different_icl_right": "changed by both to different labels, ICL's right",
    "partition_different_gd_right": "changed by both to different labels, GD's right",
    "partition_different_wrong": "changed by both to different labels, both wrong",
    "partition_only_icl_right": "changed by ICL alone, to the right label",
    "partition_only_icl_wrong": "changed by ICL alone, to a wrong label",
    "partition_only_gd_right": "changed by GD alone, to the right label",
    "partition_only_gd_wrong": "changed by GD alone, to a wrong label",
    "partition_neither": "changed by neither",
}


def partition(case: Case) -> dict[str, Tensor]:
    """Members of each part: [queries], boolean; every query is in exactly one."""
    icl, gd = changes(case)
    right_icl, right_gd = case.reference.correct, case.trace.correct
    same = icl & gd & (case.reference.predictions == case.trace.predictions)
    different, only_icl, only_gd = icl & gd & ~same, icl & ~gd, gd & ~icl
    parts = [
        same & right_icl,
        same & ~right_icl,
        different & right_icl,
        different & right_gd,
        different & ~right_icl & ~right_gd,
        only_icl & right_icl,
        only_icl & ~right_icl,
        only_gd & right_gd,
        only_gd & ~right_gd,
        ~icl & ~gd,
    ]
    return dict(zip(PARTITION, parts, strict=True))


def _count(name: str) -> Measure:
    def count(case: Case) -> Values:
        members = case.shared(partition)[name]
        return PerQuery(name, members, case.against.learning, scale=float(len(members)))

    return count


for _name, _about in PARTITION.items():
    asks_gold = _name != "partition_neither"
    of_pairs(_name, "number of queries", _about, within=SIZE, needs_gold=asks_gold)(_count(_name))
