"""Attention functions of ours that transformers may call by name."""

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def register(name: str, attention: Callable[..., Any], mask: Callable[..., Any] | None = None) -> None:
    """Tell transformers of an attention, once, when a model first needs it: its import takes seconds, and lists and
    reports of learners do without.

    It goes with its mask function (transformers' additive one, unless another is given): an attention without one
    silently loses causality.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask or eager_mask)
