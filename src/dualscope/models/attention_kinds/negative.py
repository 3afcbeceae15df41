"""Negative samples (Ren & Liu): a token's value is pushed away from the values of unlike tokens."""

import torch
from pydantic import Field
from torch import Tensor

from dualscope.models.attention_kinds.kind import KINDS, AttentionKind


@KINDS.register("negative")
class Negative(AttentionKind):
    """v_i - (beta / |N(i)|) sum_{j in N(i)} v_j: contrastive learning's negatives, in the values alone.

    N(i), which the paper leaves open, is here the (up to) k tokens that token i may look at whose keys are
    least like its own, by k_i . k_j, the exponent of the dual model's kernel. It depends on keys alone, so
    a cache of keys and values is enough to go on with; a token that sees no other has no negatives.
    """

    k: int = Field(default=1, ge=1)
    beta: float = Field(default=0.1, allow_inf_nan=False)

    def values(self, key: Tensor, value: Tensor, others: Tensor) -> Tensor:
        # The choice itself has no gradient.
        likeness = (key @ key.mT).detach().masked_fill(~others, torch.inf)
        least = likeness.topk(min(self.k, key.shape[-2]), dim=-1, largest=False)
        chosen = torch.zeros_like(likeness).scatter(-1, least.indices, torch.isfinite(least.values).to(likeness.dtype))
        count = chosen.sum(-1, keepdim=True).clamp(min=1)
        return value - self.beta * (chosen / count).to(value.dtype) @ value
