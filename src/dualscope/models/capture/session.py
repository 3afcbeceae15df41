"""What the forward passes inside one capture should see and leave behind."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.models.capture import kernel

if TYPE_CHECKING:
    from dualscope.models.reading.prefix import Prefix, Prefixes

RowIndex = int | Tensor  # one row for the whole batch, or [batch] one for every sequence


@dataclass
class Session:
    """``read`` is the row of the new tokens that is recorded (None records nothing), ``lead`` how many leading
    tokens (BOS) are not the query's own. ``cached`` holds, per layer, keys and values of tokens that the new ones
    continue. ``keep`` asks for this pass's own keys and values.

    Tokens after the read row cannot be seen from it, so shorter sequences of a batch may be filled up at their end.
    """

    prefix: "Prefix | Prefixes | None" = None
    start: int = 0  # position of the first token that is not cached
    read: RowIndex | None = None
    lead: int = 0
    bos: int = 0  # how many of the prefix's first tokens are BOS
    keep: bool = False
    plain: bool = False  # no fused kernels
    want: frozenset[str] = frozenset()
    unembed: RowIndex | slice | None = None  # the rows whose logits are asked for; None: all
    head_scales: Tensor | None = None  # [batch, layers, heads]: times each head's output at the read row
    final: RowIndex | None = None  # of each sequence the one row that the last layer is asked for; None: all
    exits: RowIndex | slice = 0  # the rows whose layer outputs "exits" asks for
    acts: RowIndex | slice | None = None  # the rows at which the model's interventions act; None: at none
    query_ids: tuple[str, ...] = ()  # of the sequences of the batch
    answer: int | None = None  # the class whose label's tokens are being read, after the prompt
    cached: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    hidden: Tensor | None = None  # [batch, cached + new keys]: those that no row sees
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    seen: dict[str, dict[int, Tensor]] = field(default_factory=dict)  # name -> layer -> tensor
    rules: dict[int, kernel.Rules] = field(default_factory=dict)  # how each layer weighed
    calls: int = 0

    def record(self, name: str, layer: int, tensor: Tensor) -> None:
        self.seen.setdefault(name, {})[layer] = tensor

    def stack(self, name: str, device: torch.device | None = None) -> Tensor:
        """What was recorded under a name, layer by layer: [batch, layers, ...]."""
        layers = self.seen[name]
        tensors = [layers[layer] for layer in sorted(layers)]
        return torch.stack([t.to(device or tensors[0].device) for t in tensors], 1)


def at(values: Tensor, rows: RowIndex) -> Tensor:
    """[batch, rows, ...] -> [batch, ...].

    >>> values = torch.arange(6).reshape(2, 3)
    >>> at(values, 1).tolist(), at(values, torch.tensor([0, 2])).tolist()
    ([1, 4], [0, 5])
    """
    if isinstance(rows, int):
        return values[:, rows]
    return values[torch.arange(len(rows), device=values.device), rows.to(values.device)]


def scaled_at(values: Tensor, rows: RowIndex, scales: Tensor) -> Tensor:
    """[batch, heads, rows, dim], each head of the chosen row times its scale [batch, heads]; other rows as they are.

    >>> scaled_at(torch.ones(1, 2, 2, 1), 1, torch.tensor([[0.5, 2.0]]))[0, :, :, 0].tolist()
    [[1.0, 0.5], [1.0, 2.0]]
    """
    factors = torch.ones_like(values[..., :1])
    batch = torch.arange(len(values), device=values.device)
    factors[batch, :, rows, 0] = scales.to(values)
    return values * factors


def some(values: Tensor, rows: RowIndex | slice) -> Tensor:
    """[batch, rows, ...] -> [batch, chosen rows, ...], where ``at`` would drop the axis."""
    return values[:, rows] if isinstance(rows, slice) else at(values, rows).unsqueeze(1)


def as_rows(values: Tensor) -> Tensor:
    """[batch, ..., tokens, width] -> [batch, tokens, width]: DeepSeek's projections see one head in between.

    >>> as_rows(torch.zeros(2, 1, 5, 3)).shape, as_rows(torch.zeros(2, 5, 3)).shape
    (torch.Size([2, 5, 3]), torch.Size([2, 5, 3]))
    """
    return values.flatten(1, -2)
