"""Attention-only transformers, several independent copies (one a seed) trained as one module."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Scores = Literal["linear", "relu", "exp", "softmax"]


class Transformer(nn.Module):
    """tokens <- tokens + P V h(K^T Q), layer after layer; no MLP, no norm.

    ``scores`` is h: linear attention, a kernel (relu, exp), or softmax over the keys. All but softmax are
    divided by the number of keys. The last token is the query, and keys and values leave it out; with
    ``causal`` every token is a query and attends to itself and to those before it, as an autoregressive
    model does. ``recurrent``: every layer has the same weights. ``largest``: entries of tokens are kept within it
    after every layer. Each weight is [copies, layers, heads, width, width].
    """

    def __init__(
        self,
        width: int,
        depth: int = 1,
        generators: Sequence[torch.Generator] = (),
        scores: Scores = "linear",
        recurrent: bool = False,
        causal: bool = False,
        heads: int = 1,
        scale: float = 0.1,
        largest: float | None = None,
    ) -> None:
        super().__init__()
        self.depth, self.scores, self.recurrent, self.causal = depth, scores, recurrent, causal
        self.largest = largest
        layers = 1 if recurrent else depth
        std = (scale / depth / width) ** 0.5  # variance scaling by fan-in, weaker the deeper

        def weights() -> nn.Parameter:
            draws = [torch.randn(layers, heads, width, width, generator=g) for g in generators]
            return nn.Parameter(std * torch.stack(draws))

        self.query, self.value, self.output = weights(), weights(), weights()
        # K^T Q starts positive. Drawn apart, its trace and P V's last entry disagree in sign half the time, and such a
        # layer sinks into a saddle (targets as keys, one direction of x learned) that it leaves only slowly.
        self.key = nn.Parameter(self.query.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """[copies, tasks, tokens, width] -> the same; without ``causal`` only the query's token of the last
        layer is computed, so the result has one token.
        """
        for layer in range(self.depth):
            tokens = self._layer(tokens, layer, last=layer == self.depth - 1)
        return tokens

    def states(self, tokens: Tensor) -> list[Tensor]:
        """The tokens before the first layer and after each, where every token is kept (``causal``)."""
        found = [tokens]
        for layer in range(self.depth):
            found.append(self._layer(found[-1], layer, last=False))
        return found

    def predict(self, tokens: Tensor) -> Tensor:
        """Minus the last entry of the query's token: [copies, tasks]."""
        found: Tensor = -self(tokens)[..., -1, -1]
        return found

    def products(self, layer: int) -> tuple[Tensor, Tensor]:
        """K^T Q and P V of a layer, all that its output depends on: each [copies, heads, width, width]."""
        at = 0 if self.recurrent else layer
        return self.key[:, at].mT @ self.query[:, at], self.output[:, at] @ self.value[:, at]

    def _layer(self, tokens: Tensor, layer: int, last: bool) -> Tensor:
        keys = tokens if self.causal else tokens[..., :-1, :]
        asked = tokens[..., -1:, :] if last and not self.causal else tokens
        keyed, mixed = self.products(layer)
        updated = asked
        for head in range(keyed.shape[1]):
            scores = _each(asked, keyed[:, head]) @ keys.mT  # [copies, tasks, asked, keys]
            updated = updated + _each(self._weigh(scores) @ keys, mixed[:, head])
        return updated if self.largest is None else updated.clamp(-self.largest, self.largest)

    def _weigh(self, scores: Tensor) -> Tensor:
        rows, keys = scores.shape[-2:]
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=scores.device).triu(1) if self.causal else None
        if self.scores == "softmax":
            return torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -torch.inf), -1)
        if self.scores != "linear":
            scores = torch.relu(scores) if self.scores == "relu" else torch.exp(scores)
        if hidden is None:
            return scores / keys
        return scores.masked_fill(hidden, 0) / torch.arange(1, keys + 1, device=scores.device).unsqueeze(-1)


def _each(tokens: Tensor, weight: Tensor) -> Tensor:
    """Every copy's own matrix: [copies, ..., in] and [copies, out, in] -> [copies, ..., out], one product a
    copy.
    """
    flat = tokens.reshape(len(weight), -1, tokens.shape[-1])
    return (flat @ weight.mT).view(*tokens.shape[:-1], -1)


def chosen(model: Transformer, copies: list[int]) -> Transformer:
    """Some copies of a model."""
    few = Transformer(model.key.shape[-1], model.depth, [torch.Generator()] * len(copies), recurrent=model.recurrent)
    with torch.no_grad():
        for mine, theirs in zip(few.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs[copies])
    return few.requires_grad_(False)


def copies_of(model: Transformer, copies: int) -> Transformer:
    """A single constructed copy, once for every seed."""
    many = Transformer(model.key.shape[-1], model.depth, [torch.Generator()] * copies, recurrent=True)
    with torch.no_grad():
        for mine, theirs in zip(many.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs.expand_as(mine))
    return many.requires_grad_(False)
