"""What the forward passes inside one capture should see and leave behind."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.models.capture import attention_kernel

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
    rules: dict[int, attention_kernel.Rules] = field(default_factory=dict)  # how each layer weighed
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


# What the read position of every query is seen to do in one layer.


def record_scores(session: Session, layer: int, query: Tensor, key: Tensor, rules: attention_kernel.Rules) -> None:
    """From the read position to the query's own tokens, itself included: [batch, heads, tokens], right-aligned."""
    assert session.read is not None
    row = at(query.transpose(1, 2), session.read)  # [batch, heads, dim]

    def to(keys: Tensor, away: Tensor | None) -> Tensor:
        every = attention_kernel.for_every_head(keys, query.shape[1])
        return attention_kernel.scores(row.unsqueeze(-2), every, rules, away).squeeze(-2)

    if isinstance(session.read, int):
        own = key[:, :, session.lead : session.read + 1]
        away = attention_kernel.distances(1, own.shape[-2], own.shape[-2] - 1, query.device)
        scores = to(own, away)
        if rules.window is not None:  # by mask, never by value
            scores = scores.masked_fill(away[0] >= rules.window, float("nan"))
    else:
        scores = _right_aligned(to(key, None), session.read, session.lead)
    session.record("attn_scores", layer, scores)
    if "query_vectors" in session.want:
        session.record("query_vectors", layer, row.flatten(1))
    if session.prefix is not None and session.want & {"context_scores", "context_products"}:
        keys = attention_kernel.for_every_head(session.prefix.keys[layer], query.shape[1])
        _record_context(session, layer, row, keys, rules)


def _record_context(session: Session, layer: int, row: Tensor, keys: Tensor, rules: attention_kernel.Rules) -> None:
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
        distance = attention_kernel.distances(1, keys.shape[-2], session.start + read, row.device)
        scores = attention_kernel.scores(row.transpose(0, 1), keys, rules, distance).sum(0)
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
    rules: attention_kernel.Rules
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
        away = attention_kernel.distances(1, keys, self.place, self.row.device)
        key = attention_kernel.for_every_head(self.key[:, :, :keys], self.query.shape[1])
        return self._weights(attention_kernel.scores(self.row.unsqueeze(-2), key, self.rules, away).squeeze(-2), away)

    def before(self, keys: Tensor) -> Tensor:
        """The same to the context's tokens, keys [kv_heads, context, dim]: [batch, heads, context]."""
        away = attention_kernel.distances(1, keys.shape[-2], self.session.start + self.place, self.row.device)
        shared = attention_kernel.for_every_head(keys, self.query.shape[1])
        # The batch goes into the rows, so that the shared keys are not copied for each query of it.
        logits = attention_kernel.scores(self.row.transpose(0, 1), shared, self.rules, away).transpose(0, 1)
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
