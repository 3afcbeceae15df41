"""A context encoded once and shared by every query."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prefix:
    """Every layer's keys and values of the context's tokens, stored once."""

    tokens: tuple[int, ...]
    keys: tuple[Tensor, ...]  # per layer [kv_heads, tokens, head_dim], positions already applied
    values: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def shared_with(self, tokens: Sequence[int]) -> int:
        """How many tokens another context begins with in common."""
        pairs = zip(self.tokens, tokens, strict=False)
        return next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(self), len(tokens)))

    def first(self, tokens: int) -> "Prefix":
        """The prefix of the first so many tokens: nothing later has touched their keys and values."""
        return Prefix(
            self.tokens[:tokens],
            tuple(k[:, :tokens] for k in self.keys),
            tuple(v[:, :tokens] for v in self.values),
        )

    def then(self, tokens: Sequence[int], keys: Iterable[Tensor], values: Iterable[Tensor]) -> "Prefix":
        """The prefix with more tokens behind it."""
        return Prefix(
            (*self.tokens, *tokens),
            tuple(torch.cat(pair, 1) for pair in zip(self.keys, keys, strict=True)),
            tuple(torch.cat(pair, 1) for pair in zip(self.values, values, strict=True)),
        )

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))
