"""Attention variants: interchangeable in a regression transformer and in a language model."""

from dualscope.models.attention.attend import attend, causal_mask
from dualscope.models.attention.augmented import Adapter, Augmented
from dualscope.models.attention.install import NAME, apply, restore, variant_of
from dualscope.models.attention.momentum import Momentum
from dualscope.models.attention.negative import Negative
from dualscope.models.attention.regularized import Regularized
from dualscope.models.attention.variant import VARIANTS, Variant, make_variant

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
