"""Attention kinds: interchangeable in a regression transformer and in a language model."""

from dualscope.models.attention_kinds.attend import attend, causal_mask
from dualscope.models.attention_kinds.augmented import Adapter, Augmented
from dualscope.models.attention_kinds.install import NAME, apply, installed, restore
from dualscope.models.attention_kinds.kind import KINDS, AttentionKind, make_kind
from dualscope.models.attention_kinds.momentum_attention import Momentum
from dualscope.models.attention_kinds.negative import Negative
from dualscope.models.attention_kinds.regularized import Regularized

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
