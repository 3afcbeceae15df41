"""A context encoded once and shared by every query."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prefix:
    """Every layer's keys and values of the context's tokens, stored once."""

    tokens: tuple[int, ...]
    keys: tuple[Tensor, ...]  # per layer [kv_heads, tokens, head_dim], positions already applied
    values: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))
