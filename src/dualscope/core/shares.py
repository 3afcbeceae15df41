"""Explained shares: of which sums each is a ratio, over the queries of a cell and over the seeds of a run alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEAST = 0.02
"""Nats. Where zero-shot is nearer to in-context learning than this, there is nothing to explain."""


class Parts(NamedTuple):
    """The metrics whose sums make a share: the divergence from ICL that the learner leaves, and zero-shot's."""

    left: str
    whole: str


SHARES = {
    "explained": Parts("kl_icl", "kl_icl_zero_shot"),
    "explained_mismatched": Parts("kl_icl_mismatched", "kl_icl_zero_shot"),
    "explained_null": Parts("kl_icl_null", "kl_icl_zero_shot"),
    "explained_next_token": Parts("kl_next_token", "kl_next_token_zero_shot"),
}


def share_of(left: np.ndarray | float, whole: np.ndarray | float) -> np.ndarray:
    """1 - left / whole, from mean divergences in nats; NaN where there is nothing to explain.

    >>> float(share_of(0.05, 0.2)), float(share_of(0.001, 0.019))
    (0.75, nan)
    """
    left, whole = np.asarray(left, float), np.asarray(whole, float)
    enough = whole >= LEAST
    found: np.ndarray = np.where(enough, 1 - left / np.where(enough, whole, 1.0), np.nan)
    return found
