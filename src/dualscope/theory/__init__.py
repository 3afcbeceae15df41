"""The exact theory: dual forms and constructions, each a small function that returns both sides.

identity        TwoSides, Draw, the registry IDENTITIES
linear_layer    gradient descent on a linear layer is linear attention
icl_dual        W_ZSL + dW_ICL, its fine-tuning counterpart, the exact softmax split
vonoswald       a linear self-attention layer that is a GD step; GD++
features        maps phi with phi(k) . phi(q) = exp(k . q)
softmax_dual    softmax attention as one step of a dual model; steps, FFN, layers
variants        what a changed dual loss does to attention
representation  the dual's loss beside those of contrastive and kernel learning
likeness        changes that look alike and are not: dilution, normalised random updates
bound           the dual model's generalisation bound, on data
preconditioned  preconditioned GD and its best preconditioner
functional      attention as functional gradient descent
closed_forms    least squares, ridge, GD, nearest neighbours
dual_of         the dual of one head of a real model
context_patch   the context as a change of the weights of a real model
"""

from dualscope.theory import attention_variants as variants
from dualscope.theory import (
    bound,
    closed_forms,
    features,
    functional,
    icl_dual,
    likeness,
    linear_layer,
    preconditioned,
    representation,
    softmax_dual,
)
from dualscope.theory import linear_attention_step as vonoswald
from dualscope.theory.identity import IDENTITIES, AtMost, CheckedIdentity, Draw, Identity, TwoSides, chosen, judge
from dualscope.theory.real_models import HeadDual, Patched, context_patch, dual_of

__all__ = [
    "IDENTITIES",
    "AtMost",
    "CheckedIdentity",
    "Draw",
    "HeadDual",
    "Identity",
    "Patched",
    "TwoSides",
    "bound",
    "chosen",
    "closed_forms",
    "context_patch",
    "dual_of",
    "features",
    "functional",
    "icl_dual",
    "judge",
    "likeness",
    "linear_layer",
    "preconditioned",
    "representation",
    "softmax_dual",
    "variants",
    "vonoswald",
]
