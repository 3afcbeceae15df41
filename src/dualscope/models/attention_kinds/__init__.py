"""Attention kinds: interchangeable in a regression transformer and in a language model."""

from dualscope.models.attention_kinds.install import NAME, apply, attend, causal_mask, installed, restore
from dualscope.models.attention_kinds.kinds import (
    KINDS,
    Adapter,
    AttentionKind,
    Augmented,
    Momentum,
    Negative,
    Regularized,
    make_kind,
)

__all__ = [
    "KINDS",
    "NAME",
    "Adapter",
    "AttentionKind",
    "Augmented",
    "Momentum",
    "Negative",
    "Regularized",
    "apply",
    "attend",
    "causal_mask",
    "installed",
    "make_kind",
    "restore",
]
