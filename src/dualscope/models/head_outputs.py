"""What the heads of an attention hand to its output projection, and what each of them writes through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.files.low_rank import matrix

if TYPE_CHECKING:
    from dualscope.models.model import Model


def output_projection(model: Model, layer: int) -> nn.Module:
    """What makes attn_out of the heads' outputs, one head behind another."""
    try:
        return model.attentions[layer].get_submodule(model.family.output)
    except AttributeError:
        raise InputError(
            f"{model.name}: the attention of layer {layer} has no '{model.family.output}', so what its heads write "
            f"cannot be read; the family entry '{model.family.name}' names the output projection (docs: how to add a "
            "model family)"
        ) from None


def written_by_heads(model: Model, layer: int, heads: Tensor) -> Tensor:
    """What each head adds to attn_out: [..., heads, head_dim] -> [..., heads, width].

    Every head goes through its own slice of the output projection; the sum over heads is attn_out less the bias.
    """
    projection = output_projection(model, layer)
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise InputError(
            f"{model.name}: the output projection of layer {layer} is a {type(projection).__name__}, whose weights "
            "cannot be cut into heads; load the model with plain weights"
        )
    slices = matrix(projection).to(heads.dtype).unflatten(1, heads.shape[-2:])  # [width, heads, head_dim]
    return torch.einsum("...hd,whd->...hw", heads, slices)
