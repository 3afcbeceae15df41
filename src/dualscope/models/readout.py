"""Logits of a residual stream: final norm, unembedding, logit scale and softcap, as the model itself has them."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from dualscope.models.model import Model


def read_out(model: "Model", hidden: Tensor, rows: Tensor | None = None) -> Tensor:
    """Of [..., width] the logits [..., vocabulary], or those of the tokens ``rows`` alone."""
    for path in model.family.final:
        module = _submodule(model.hf, path)
        hidden = hidden if module is None else module(hidden)
    head = model.hf.get_output_embeddings()
    hidden = hidden.to(head.weight.device)
    logits: Tensor
    if rows is None:
        logits = head(hidden)
    else:
        bias, rows = getattr(head, "bias", None), rows.to(hidden.device)
        logits = nn.functional.linear(hidden, head.weight[rows], None if bias is None else bias[rows])
    logits = logits.to(model.device)
    # Cohere; MPT's configuration has one that its model ignores.
    if scale := getattr(model.hf, "logit_scale", None):
        logits = logits * scale
    if scale := getattr(model.config, "logits_scaling", None):  # Granite
        logits = logits / scale
    if softcap := getattr(model.config, "final_logit_softcapping", None):  # Gemma 2
        logits = torch.tanh(logits / softcap) * softcap
    return logits


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    """A submodule, or None where the architecture may leave it out (OPT's project_out)."""
    for name in path.split("."):
        module = getattr(module, name, None)  # type: ignore[assignment]
        if module is None:
            return None
    return module
