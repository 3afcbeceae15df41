"""What the read position of every query is seen to do in one layer."""

import torch
from torch import Tensor

from dualscope.models.capture import kernel
from dualscope.models.capture.session import Session, at


def record_scores(session: Session, layer: int, query: Tensor, key: Tensor, rules: kernel.Rules) -> None:
    """From the read position to the query's own tokens, itself included: [batch, heads, tokens], right-aligned."""
    assert session.read is not None
    row = at(query.transpose(1, 2), session.read)  # [batch, heads, dim]
    if isinstance(session.read, int):
        own = key[:, :, session.lead : session.read + 1]
        away = kernel.distances(1, own.shape[-2], own.shape[-2] - 1, query.device)
        scores = kernel.scores(row.unsqueeze(-2), heads(own, query), rules, away).squeeze(-2)
        if rules.window is not None:  # by mask, never by value
            scores = scores.masked_fill(away[0] >= rules.window, float("nan"))
    else:
        everything = kernel.scores(row.unsqueeze(-2), heads(key, query), rules, None).squeeze(-2)
        scores = _right_aligned(everything, session.read, session.lead)
    session.record("attn_scores", layer, scores)
    if "query_vectors" in session.want:
        session.record("query_vectors", layer, row.flatten(1))
    if session.prefix is not None and session.want & {"context_scores", "context_products"}:
        _record_context(session, layer, row, heads(session.prefix.keys[layer], query), rules)


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
    place = (
        read.to(scores.device)[:, None] - (width - 1) + torch.arange(width, device=scores.device)
    )  # [batch, width]
    index = place.clamp(min=0)[:, None].expand(-1, scores.shape[1], -1)
    return scores.gather(-1, index).masked_fill((place < lead)[:, None], float("nan"))


def record_mass(
    session: Session,
    layer: int,
    query: Tensor,
    key: Tensor,
    rules: kernel.Rules,
    lse: Tensor,
    sinks: Tensor | None,
) -> None:
    """The softmax weight that the read position gives to BOS and to the demonstrations: [batch, heads]."""
    assert session.read is not None
    row = at(query.transpose(1, 2), session.read).unsqueeze(-2)
    total = at(lse.transpose(1, 2), session.read)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total))
    # Distances matter to windows and ALiBi only, and there all sequences of a batch are equally long.
    read = session.read if isinstance(session.read, int) else 0
    if session.prefix is None:
        # Among themselves the tokens stand from 0 on, whatever the offset of their positions.
        away = kernel.distances(1, session.lead, read, row.device)
        logits = kernel.scores(row, heads(key[:, :, : session.lead], query), rules, away).squeeze(-2)
        weights = torch.exp(logits - total[..., None])
        if rules.window is not None:
            weights = weights.masked_fill(away[0] >= rules.window, 0.0)
        session.record("bos_mass", layer, weights.sum(-1))
        session.record("demo_mass", layer, torch.zeros_like(weights.sum(-1)))
        return
    keys = heads(session.prefix.keys[layer], query)
    distance = kernel.distances(1, keys.shape[-2], session.start + read, row.device)
    # The batch goes into the rows, so that the shared keys are not copied for each query of it.
    logits = kernel.scores(row.squeeze(-2).transpose(0, 1), keys, rules, distance).transpose(0, 1)
    weights = torch.exp(logits - total[..., None])
    if rules.window is not None:
        weights = weights.masked_fill(distance[0] >= rules.window, 0.0)
    session.record("bos_mass", layer, weights[..., : session.bos].sum(-1))
    session.record("demo_mass", layer, weights[..., session.bos :].sum(-1))


def record_attention(
    session: Session,
    layer: int,
    query: Tensor,
    key: Tensor,
    rules: kernel.Rules,
    lse: Tensor,
    sinks: Tensor | None,
) -> None:
    """The softmax weights of the read position: to what stands before the query (the context, or BOS alone), and to the
    query's own tokens, right-aligned: [batch, heads, tokens] each. Together they are 1, or less where sinks take some.
    """
    assert session.read is not None
    row = at(query.transpose(1, 2), session.read).unsqueeze(-2)
    total = at(lse.transpose(1, 2), session.read)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total))
    # Distances matter to windows and ALiBi only, and there all sequences of a batch are equally long.
    read = session.read if isinstance(session.read, int) else 0

    def weights(keys: Tensor, distance: Tensor) -> Tensor:
        logits = kernel.scores(row, heads(keys, query), rules, distance).squeeze(-2)
        found = torch.exp(logits - total[..., None])
        return found if rules.window is None else found.masked_fill(distance[0] >= rules.window, 0.0)

    own = weights(key, kernel.distances(1, key.shape[-2], read, row.device))
    if session.prefix is None:
        before = own[..., : session.lead]
    else:
        keys = session.prefix.keys[layer]
        before = weights(keys, kernel.distances(1, keys.shape[-2], session.start + read, row.device))
    rows = (
        torch.full((len(own),), session.read, device=own.device)
        if isinstance(session.read, int)
        else session.read
    )
    session.record("attention_before", layer, before)
    session.record("attention_own", layer, _right_aligned(own, rows.to(own.device), session.lead))


def heads(key: Tensor, query: Tensor) -> Tensor:
    """Keys of grouped heads, one for every query head."""
    groups = query.shape[1] // key.shape[-3]
    return key if groups == 1 else key.repeat_interleave(groups, -3)
