"""Momentum attention (Dai et al.): gradient descent with momentum, read into attention."""

import torch
from pydantic import Field
from torch import Tensor

from dualscope.models.attention_kinds.kind import KINDS, AttentionKind, own_positions


@KINDS.register("momentum")
class Momentum(AttentionKind):
    """MoAttn(V, K, q_t) = V softmax(K^T q_t / sqrt d) + sum_{i<t} eta^{t-i} v_i."""

    eta: float = Field(default=0.5, ge=0, lt=1)

    def mix(self, weights: Tensor, visible: Tensor) -> Tensor:
        queries, keys = weights.shape[-2:]
        own = own_positions(queries, keys, weights.device)
        distance = own[:, None] - torch.arange(keys, device=weights.device)  # [queries, keys], t - i
        decay = torch.where(distance > 0, self.eta ** distance.clamp(min=1).to(weights.dtype), 0)
        return weights + decay * visible  # padding has no momentum
