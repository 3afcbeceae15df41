"""The key and value weights of a layer, wherever an architecture keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

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
