"""A context encoded once and shared by every query."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session

if TYPE_CHECKING:
    from dualscope.models.model import Model


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
            self.tokens[:tokens], tuple(k[:, :tokens] for k in self.keys), tuple(v[:, :tokens] for v in self.values)
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


@dataclass(frozen=True)
class Prefixes:
    """Contexts of equal length side by side: of each layer's keys and values [contexts, kv_heads, tokens, head_dim]."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def __len__(self) -> int:
        """Tokens of each of them."""
        return self.keys[0].shape[-2]


@torch.no_grad()
def encoded_together(model: "Model", contexts: Sequence[Sequence[int]]) -> Prefixes:
    """Several contexts of equal length, encoded at once."""
    length = len(contexts[0])
    assert all(len(one) == length for one in contexts), "contexts of unequal length"
    model.counters["prefixes"] += len(contexts)
    model.counters["prefix tokens"] += len(contexts) * length
    session = Session(keep=True, unembed=slice(-1, None), final=length - 1)
    tokens = torch.tensor([list(one) for one in contexts], device=model.device)
    with model.running(), capturing(model, session):
        model.forward(tokens, 0)
    model.check(session)
    keys, values = zip(*(session.kept[layer] for layer in range(model.n_layers)), strict=True)
    # Contiguous, because these are views of a fused projection that would otherwise keep queries alive too.
    return Prefixes(tuple(own.contiguous() for own in keys), tuple(own.contiguous() for own in values))


@torch.no_grad()
def encoded(model: "Model", tokens: Sequence[int], known: Prefix | None = None) -> Prefix:
    """The prefix of some tokens; what ``known`` shares with it is not encoded again."""
    shared = 0 if known is None else known.shared_with(tokens)
    before = None if known is None or not shared else known.first(shared)
    if before is not None and shared == len(tokens):
        return before
    model.counters["prefixes"] += 1
    model.counters["prefix tokens"] += len(tokens) - shared
    session = Session(prefix=before, start=shared, keep=True, unembed=slice(-1, None), final=len(tokens) - shared - 1)
    with model.running(), capturing(model, session):
        model.forward(torch.tensor([tokens[shared:]], device=model.device), shared)
    model.check(session)
    keys, values = zip(*(session.kept[layer] for layer in range(model.n_layers)), strict=True)
    # Contiguous, because these are views of a fused projection that would otherwise keep queries alive too.
    own = tuple(k[0].contiguous() for k in keys), tuple(v[0].contiguous() for v in values)
    return Prefix(tuple(tokens), *own) if before is None else before.then(tokens[shared:], *own)
