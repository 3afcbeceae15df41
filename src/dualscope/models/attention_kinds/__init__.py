"""Attention variants: interchangeable in a regression transformer and in a language model."""

from dualscope.models.attention_kinds.attend import attend, causal_mask
from dualscope.models.attention_kinds.augmented import Adapter, Augmented
from dualscope.models.attention_kinds.install import NAME, apply, restore, variant_of
from dualscope.models.attention_kinds.kind import VARIANTS, Variant, make_variant
from dualscope.models.attention_kinds.momentum import Momentum
from dualscope.models.attention_kinds.negative import Negative
from dualscope.models.attention_kinds.regularized import Regularized

__all__ = [
    "NAME",
    "VARIANTS",
    "Adapter",
    "Augmented",
    "Momentum",
    "Negative",
    "Regularized",
    "Variant",
    "apply",
    "attend",
    "causal_mask",
    "make_variant",
    "restore",
    "variant_of",
]
