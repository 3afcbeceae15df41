"""What the read position of every query is seen to do in one layer."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dualscope.models.capture import kernel
from dualscope.models.capture.session import Session, at


def record_scores(session: Session, layer: int, query: Tensor, key: Tensor, rules: kernel.Rules) -> None:
    """From the read position to the query's own tokens, itself included: [batch, heads, tokens], right-aligned."""
    assert session.read is not None
    row = at(query.transpose(1, 2), session.read)  # [batch, heads, dim]

    def to(keys: Tensor, away: Tensor | None) -> Tensor:
        every = kernel.for_every_head(keys, query.shape[1])
        return kernel.scores(row.unsqueeze(-2), every, rules, away).squeeze(-2)

    if isinstance(session.read, int):
        own = key[:, :, session.lead : session.read + 1]
        away = kernel.distances(1, own.shape[-2], own.shape[-2] - 1, query.device)
        scores = to(own, away)
        if rules.window is not None:  # by mask, never by value
            scores = scores.masked_fill(away[0] >= rules.window, float("nan"))
    else:
        scores = _right_aligned(to(key, None), session.read, session.lead)
    session.record("attn_scores", layer, scores)
    if "query_vectors" in session.want:
        session.record("query_vectors", layer, row.flatten(1))
    if session.prefix is not None and session.want & {"context_scores", "context_products"}:
        keys = kernel.for_every_head(session.prefix.keys[layer], query.shape[1])
        _record_context(session, layer, row, keys, rules)


def _record_context(session: Session, layer: int, row: Tensor, keys: Tensor, rules: kernel.Rules) -> None:
    """From the read position to the context's tokens, summed over heads: [batch, context].

    ``row`` is [batch, heads, dim], ``keys`` [heads, context, dim]. Scores are what softmax sees, NaN where a window
    hides a token; products are k.q alone.
    """
    if "context_products" in session.want:
        wide = torch.promote_types(row.dtype, torch.float32)
        session.record("context_products", layer, torch.einsum("bhd,hcd->bc", row.to(wide), keys.to(wide)))
    if "context_scores" in session.want:
        # Distances matter to windows and ALiBi only, and there all sequences of a batch are equally long.
        read = session.read if isinstance(session.read, int) else 0
        distance = kernel.distances(1, keys.shape[-2], session.start + read, row.device)
        scores = kernel.scores(row.transpose(0, 1), keys, rules, distance).sum(0)
        if rules.window is not None:
            scores = scores.masked_fill(distance[0] >= rules.window, float("nan"))
        session.record("context_scores", layer, scores)


def _right_aligned(scores: Tensor, read: Tensor, lead: int) -> Tensor:
    """[batch, heads, rows] -> [batch, heads, rows - lead]: each sequence ends with its read position."""
    width = scores.shape[-1] - lead
    place = read.to(scores.device)[:, None] - (width - 1) + torch.arange(width, device=scores.device)  # [batch, width]
    index = place.clamp(min=0)[:, None].expand(-1, scores.shape[1], -1)
    return scores.gather(-1, index).masked_fill((place < lead)[:, None], float("nan"))


@dataclass(frozen=True)
class ReadRow:
    """The read position of every query in one attention call, and what its softmax summed to."""

    session: Session
    layer: int
    query: Tensor  # [batch, heads, rows, dim]
    key: Tensor  # [batch, kv_heads, keys, dim]
    rules: kernel.Rules
    lse: Tensor  # [batch, heads, rows]
    sinks: Tensor | None

    @property
    def place(self) -> int:
        """Which row it is, as far as distances matter: to windows and ALiBi only, and there all sequences of a batch
        are equally long.
        """
        return self.session.read if isinstance(self.session.read, int) else 0

    @cached_property
    def row(self) -> Tensor:
        assert self.session.read is not None
        return at(self.query.transpose(1, 2), self.session.read)  # [batch, heads, dim]

    @cached_property
    def total(self) -> Tensor:
        assert self.session.read is not None
        total = at(self.lse.transpose(1, 2), self.session.read)  # [batch, heads]
        return total if self.sinks is None else torch.logaddexp(total, self.sinks.to(total))

    def own(self, keys: int) -> Tensor:
        """Softmax weights to the first tokens of the sequence itself, which stand from 0 on among themselves, whatever
        the offset of their positions: [batch, heads, keys].
        """
        away = kernel.distances(1, keys, self.place, self.row.device)
        key = kernel.for_every_head(self.key[:, :, :keys], self.query.shape[1])
        return self._weights(kernel.scores(self.row.unsqueeze(-2), key, self.rules, away).squeeze(-2), away)

    def before(self, keys: Tensor) -> Tensor:
        """The same to the context's tokens, keys [kv_heads, context, dim]: [batch, heads, context]."""
        away = kernel.distances(1, keys.shape[-2], self.session.start + self.place, self.row.device)
        shared = kernel.for_every_head(keys, self.query.shape[1])
        # The batch goes into the rows, so that the shared keys are not copied for each query of it.
        logits = kernel.scores(self.row.transpose(0, 1), shared, self.rules, away).transpose(0, 1)
        return self._weights(logits, away)

    def _weights(self, logits: Tensor, away: Tensor) -> Tensor:
        weights = torch.exp(logits - self.total[..., None])
        window = self.rules.window
        return weights if window is None else weights.masked_fill(away[0] >= window, 0.0)


def record_mass(row: ReadRow) -> None:
    """The softmax weight that the read position gives to BOS and to the demonstrations: [batch, heads]."""
    session, layer = row.session, row.layer
    if session.prefix is None:
        bos = row.own(session.lead).sum(-1)
        session.record("bos_mass", layer, bos)
        session.record("demo_mass", layer, torch.zeros_like(bos))
        return
    weights = row.before(session.prefix.keys[layer])
    session.record("bos_mass", layer, weights[..., : session.bos].sum(-1))
    session.record("demo_mass", layer, weights[..., session.bos :].sum(-1))


def record_attention(row: ReadRow) -> None:
    """The softmax weights of the read position: to what stands before the query (the context, or BOS alone), and to the
    query's own tokens, right-aligned: [batch, heads, tokens] each. Together they are 1, or less where sinks take some.
    """
    session, layer = row.session, row.layer
    own = row.own(row.key.shape[-2])
    before = own[..., : session.lead] if session.prefix is None else row.before(session.prefix.keys[layer])
    read = session.read
    rows = torch.full((len(own),), read, device=own.device) if isinstance(read, int) else read
    assert rows is not None
    session.record("attention_before", layer, before)
    session.record("attention_own", layer, _right_aligned(own, rows.to(own.device), session.lead))
