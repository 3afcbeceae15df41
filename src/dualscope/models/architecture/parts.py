"""The key and value weights of a layer, wherever an architecture keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from dualscope.core.errors import InputError
from dualscope.models.loading.adapter import matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dualscope.models.model import Model


Qkv = Literal["query", "key", "value"]
Layout = Literal["stacked", "interleaved", "four", "latent"]


@dataclass(frozen=True)
class Heads:
    """What an attention has, and how wide: ``kv`` of keys and values where queries share them."""

    count: int
    kv: int
    width: int  # of a query and of a key; in latent attention of the key's part without a position
    value_width: int


@dataclass(frozen=True)
class Rows:
    """Rows of a fused matrix: it is ``blocks`` equal blocks of ``size`` rows, and a role has the rows from ``first``
    to ``last`` (not included) of every block.
    """

    blocks: int
    size: int
    first: int
    last: int

    @property
    def total(self) -> int:
        return self.blocks * self.size


def rows_of(layout: Layout, role: Qkv, heads: Heads) -> Rows | None:
    """Where a fused matrix keeps a role; None where it does not hold it.

    - ``stacked``: all queries, all keys, all values;
    - ``interleaved``: head by head, query, key, value; where queries share keys, group by group (Falcon);
    - ``four``: four blocks, each with a fourth of the queries, of the values, of the keys (CodeGen);
    - ``latent``: head by head, key and value; the queries are elsewhere (DeepSeek).

    >>> heads = Heads(count=4, kv=2, width=8, value_width=8)
    >>> rows_of("stacked", "value", heads), rows_of("interleaved", "key", heads)
    (Rows(blocks=1, size=64, first=48, last=64), Rows(blocks=2, size=32, first=16, last=24))
    """
    queries, own = heads.count * heads.width, heads.width
    groups = heads.count // heads.kv
    sizes: tuple[tuple[Qkv, int], ...]
    if layout == "stacked":
        blocks, sizes = 1, (("query", queries), ("key", heads.kv * own), ("value", heads.kv * own))
    elif layout == "interleaved":
        blocks, sizes = heads.kv, (("query", groups * own), ("key", own), ("value", own))
    elif layout == "four":
        blocks, sizes = 4, (("query", queries // 4), ("value", queries // 4), ("key", queries // 4))
    else:
        blocks, sizes = heads.count, (("key", own), ("value", heads.value_width))
    first = 0
    for name, size in sizes:
        if name == role:
            return Rows(blocks, sum(size for _, size in sizes), first, first + size)
        first += size
    return None


@dataclass(frozen=True)
class Part:
    """One weight matrix or bias, or the slice of a fused one, always seen as [out, in] or [out]; GPT-2's are kept
    transposed.
    """

    layer: int
    role: Qkv
    kind: Literal["weight", "bias"]
    parameter: str  # its name in hf.named_parameters()
    rows: Rows | None = None  # of a fused matrix
    transposed: bool = False

    @property
    def name(self) -> str:
        return f"layers.{self.layer}.{self.role}.{self.kind}"

    def view(self, tensor: Tensor) -> Tensor:
        """The part as a view of its parameter (or of the parameter's gradient); writing to it writes there.

        Of a fused matrix [blocks, rows, in], of its bias [blocks, rows].
        """
        if self.transposed and self.kind == "weight":
            tensor = tensor.T
        if self.rows is None:
            return tensor
        found: Tensor = tensor.unflatten(0, (self.rows.blocks, self.rows.size))[:, self.rows.first : self.rows.last]
        return found

    def view_output(self, output: Tensor) -> Tensor:
        """This part's share of what its projection gives: [..., out] or, of a fused one, [..., blocks, rows]."""
        if self.rows is None:
            return output
        blocks = output.unflatten(-1, (self.rows.blocks, self.rows.size))
        found: Tensor = blocks[..., self.rows.first : self.rows.last]
        return found

    def get(self, tensor: Tensor) -> Tensor:
        """The part of its parameter as [out, in] or [out]."""
        view = self.view(tensor)
        return view if self.rows is None else view.flatten(0, 1)

    def add_(self, tensor: Tensor, change: Tensor) -> None:
        """Add a change, [out, in] or [out], to the part in place."""
        view = self.view(tensor)
        view.add_(change.view(view.shape).to(view.dtype))


def parts_of(model: Model, layer: int, role: Qkv) -> Iterator[Part]:
    """A layer's weight and bias (where there is one) of a role."""
    family, module = model.family, model.attentions[layer]
    rows = rows_of(family.layout, role, family.heads(model.config)) if family.fused else None
    name = str(getattr(family, role if rows is None else "fused"))
    projection = module.get_submodule(name)
    transposed = not isinstance(projection, nn.Linear)  # GPT-2's Conv1D keeps [in, out]
    path = f"{family.blocks}.{layer}.{family.attention}.{name}"
    kinds: tuple[Literal["weight", "bias"], ...] = ("weight", "bias")
    for kind in kinds:
        if getattr(projection, kind, None) is not None:
            yield Part(layer, role, kind, f"{path}.{kind}", rows, transposed)


# What the heads of an attention hand to its output projection, and what each of them writes through it.


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


def read_out(model: Model, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
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
