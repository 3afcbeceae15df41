"""Regularized attention: weight decay on the dual model (Ren & Liu)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dualscope.models.attention_kinds.kind import KINDS, AttentionKind, own_positions


@KINDS.register("regularized")
class Regularized(AttentionKind):
    """The dual model's loss gets (alpha / 2 eta) |W|^2.

    ``published`` is the form printed in the paper, W_V X [softmax(.) - alpha I]: every token loses alpha
    times its own value. ``dual`` is what one gradient step on that loss gives exactly: W0, the part of the
    sum that no demonstration made, is scaled by (1 - alpha). For a token, W0 is its own term and the tokens
    before it are the demonstrations. The two forms do not coincide: the published one subtracts a whole
    value, the dual a share of the weight that the token gave itself.
    """

    alpha: float = Field(default=0.5, allow_inf_nan=False)
    form: Literal["published", "dual"] = "published"

    def mix(self, weights: Tensor, visible: Tensor) -> Tensor:
        queries, keys = weights.shape[-2:]
        own = own_positions(queries, keys, weights.device)
        identity = torch.nn.functional.one_hot(own, keys).to(weights.dtype)  # [queries, keys]
        if self.form == "published":
            return weights - self.alpha * identity
        return weights * (1 - self.alpha * identity)
