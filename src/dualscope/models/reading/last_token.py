"""The same queries under several interventions: what stands before the place that is changed is read once.

An intervention acts on the token that predicts the label. Nothing before that token can see it, so the keys and values
of the earlier ones are kept, and only the last token goes through the model again.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.models.capture.block_hooks import ActivationEdit
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.memory import halving
from dualscope.models.reading.read import Reading, score_labels

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson

Kept = dict[int, tuple[Tensor, Tensor]]  # a layer's keys and values, [batch, kv_heads, tokens, head_dim]


@torch.no_grad()
def read_under_each(model: "Model", lesson: "Lesson", changes: Sequence[Sequence[ActivationEdit]]) -> Tensor:
    """Log-probabilities of the labels without a context, as `Trace` has them: [changes, queries, classes].

    Each change is a list of interventions; the empty list leaves the model as it is.
    """
    if lesson.read_at != "prompt-end":
        raise InputError("only what is read at the end of the prompt can be read again there")
    reading = Reading(model, lesson, None, frozenset(), 0, model.in_other_order)
    found = torch.empty(len(changes), len(lesson.queries), len(lesson.answers), dtype=reading.dtype)
    with model.running():
        for batch in batches_of(model, lesson, None, None):
            for part, values in halving(model, batch, partial(_batch_under_each, reading, changes)):
                found[:, part.queries] = values.cpu()
    return found.to(model.device)


def _batch_under_each(reading: Reading, changes: Sequence[Sequence[ActivationEdit]], batch: Batch) -> Tensor:
    model, plain = reading.model, reading.plain
    last = torch.as_tensor(batch.prompt_end, device=model.device).expand(len(batch.queries))
    own = batch.tokens[torch.arange(len(last), device=model.device), last][:, None]
    width = batch.tokens.shape[1] - 1
    earlier = Session(keep=True, plain=plain, unembed=0)
    if width:
        with capturing(model, earlier):
            model.forward(batch.tokens[:, :width])
        model.check(earlier)
    # Of a shorter query, its own last token and what fills it up stand among what was kept: they are not seen.
    hidden = None if isinstance(batch.prompt_end, int) else _not_before(last, width)
    several = any(len(answer) > 1 for answer in reading.lesson.answers)
    ids = tuple(reading.lesson.query_ids[i] for i in batch.queries)
    values = []
    for interventions in changes:
        session = Session(
            cached=earlier.kept, hidden=hidden, keep=several, plain=plain, unembed=0, acts=0, query_ids=ids
        )
        with model.intervened(*interventions), capturing(model, session):
            logits = model.forward(own, last)
        model.check(session)
        whole = Session(plain=plain, query_ids=ids, kept=_joined(earlier.kept, session.kept))
        values.append(score_labels(reading, batch, whole, logits, None)["label_logprobs"])
    return torch.stack(values)


def _not_before(last: Tensor, width: int) -> Tensor:
    """Which of the kept tokens do not come before a query's last one: [queries, width + that one itself]."""
    places = torch.arange(width + 1, device=last.device)
    return (places >= last[:, None]) & (places < width)


def _joined(before: Kept, own: Kept) -> Kept:
    """The keys and values of the whole prompt, for labels of several tokens to go on from."""
    if not before:
        return own
    return {
        layer: (torch.cat([before[layer][0], key], -2), torch.cat([before[layer][1], value], -2))
        for layer, (key, value) in own.items()
    }
