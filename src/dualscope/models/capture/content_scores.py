"""A layer's attention scores by content alone: its own queries and keys before any position is turned into them.

Two texts that are read apart stand at no distance from each other. What a layer's attention says of their likeness is
the product of the query that it makes of one and the key that it makes of the other, as if both stood in one place.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.architecture.parts import Qkv
from dualscope.models.capture import attention_kernel
from dualscope.models.capture.block_hooks import rows_of
from dualscope.models.capture.session import RowIndex, as_rows

if TYPE_CHECKING:
    from dualscope.models.architecture.parts import Part
    from dualscope.models.model import Model

ROLES: tuple[Qkv, ...] = ("query", "key")
_NORMS = {"query": ("q_norm", "q_layernorm", "query_layernorm"), "key": ("k_norm", "k_layernorm", "key_layernorm")}


class QueriesAndKeys:
    """What a layer's projections make of the rows of a batch, from when the layer runs until `taken`."""

    def __init__(self, model: Model, layer: int, stack: ExitStack) -> None:
        self.model, self.layer = model, layer
        self.seen: dict[str, Tensor] = {}
        self.parts = {role: _projection(model, layer, role) for role in ROLES}
        self.norms = {role: _norm(model, layer, role) for role in ROLES}
        self.scaled_before = _scaled_before(model, layer)
        for role, part in self.parts.items():
            projection = model.hf.get_submodule(part.parameter.rpartition(".")[0])
            stack.callback(projection.register_forward_hook(self._noting(role)).remove)

    def _noting(self, role: Qkv) -> Any:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            self.seen[role] = as_rows(output)

        return hook

    def taken(self, batch: int, rows: RowIndex | slice) -> tuple[Tensor, Tensor]:
        """Queries and keys at some rows, [batch, heads, head_dim] each: those of shared keys once for every head."""
        query, key = self._of("query", batch, rows), self._of("key", batch, rows)
        self.seen = {}
        query = query * self.scaled_before
        return query, attention_kernel.for_every_head(key.unsqueeze(-2), query.shape[-2]).squeeze(-2)

    def _of(self, role: Qkv, batch: int, rows: RowIndex | slice) -> Tensor:
        heads = self.model.family.heads(self.model.config)
        whole = self.seen[role]
        found = self.parts[role].view_output(rows_of(whole.reshape(batch, -1, whole.shape[-1]), rows))
        flat = found if self.parts[role].rows is None else found.flatten(-2)
        split: Tensor = flat.unflatten(-1, (heads.count if role == "query" else heads.kv, -1))
        norm = self.norms[role]
        if norm is None:
            return split
        over_all = norm.weight.ndim == 1 and norm.weight.numel() == flat.shape[-1] != split.shape[-1]
        normed: Tensor = norm(flat).view(split.shape) if over_all else norm(split)
        return normed


def content_scores(query: Tensor, key: Tensor, rules: attention_kernel.Rules) -> Tensor:
    """Scores as the layer's softmax has them, were nothing between the two: [queries, heads, keys].

    ``query`` is [queries, heads, head_dim], ``key`` [keys, heads, head_dim].
    """
    found = attention_kernel.scores(query.transpose(0, 1), key.transpose(0, 1), _without_places(rules), None)
    by_query: Tensor = found.transpose(0, 1)
    return by_query


def _without_places(rules: attention_kernel.Rules) -> attention_kernel.Rules:
    return attention_kernel.Rules(rules.scaling, rules.softcap)


def _projection(model: Model, layer: int, role: Qkv) -> Part:
    if model.family.layout == "latent":
        raise InputError(
            f"{model.name}: the architecture '{model.family.name}' makes keys from a compressed vector and adds a part "
            "that is nothing but position, so it has no keys and queries by content alone; take kernel: exp"
        )
    return next(part for part in model.parts([layer], [role]) if part.kind == "weight")


def _scaled_before(model: Model, layer: int) -> float:
    """What multiplies queries before the attention itself, which then scales no more."""
    attention: Any = model.attentions[layer]
    return float(attention.scaling) if model.family.scales_queries_first else 1.0


def _norm(model: Model, layer: int, role: Qkv) -> Any:
    """What normalises a role's heads before positions are turned in; None: nothing does."""
    attention = model.attentions[layer]
    norms = {name: module for name, module in attention.named_children() if "norm" in name}
    known = [norms.pop(name) for names in _NORMS.values() for name in names if name in norms]
    unknown = [*norms, *(type(module).__name__ for module in known if not _is_plain(module))]
    if unknown:
        raise InputError(
            f"{model.name}: the attention of the architecture '{model.family.name}' normalises by {unknown[0]}, which "
            "is not known here, so its keys and queries by content cannot be told; take kernel: exp"
        )
    own = [getattr(attention, name) for name in _NORMS[role] if hasattr(attention, name)]
    return own[0] if own and isinstance(own[0], nn.Module) else None


def _is_plain(module: nn.Module) -> bool:
    return isinstance(getattr(module, "weight", None), torch.Tensor)
