"""Reading queries: in batches, after BOS or after a shared prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.reading.batches import Batch, batches_of
from dualscope.models.reading.memory import halving, tensor_limit
from dualscope.models.reading.prefix import Prefix, Prefixes
from dualscope.models.reading.trace import Trace, room_for

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.tasks.lesson import Lesson


LIKELIEST, TOP = 100, 10  # next tokens whose probabilities are kept, and those that count as the top
_MASSES = ("bos_mass", "demo_mass")
_ATTENTION = ("attention_before", "attention_own")
_STACKED = ("layer_inputs", "query_vectors", "context_scores", "context_products", *_MASSES, "heads", *_ATTENTION)
_RIGHT_ALIGNED = ("attn_scores", "attention_own")
_LARGE = {"attn_out", "attn_scores", "residual", *_STACKED} - set(_MASSES)  # may be kept in files


@dataclass(frozen=True)
class Reading:
    """What is read: which queries, after what, and what is asked for."""

    model: Model
    lesson: Lesson
    prefix: Prefix | Prefixes | None
    want: frozenset[str]
    start: int  # position of the first token that is not the prefix's
    plain: bool
    head_scales: Tensor | None = None
    """[queries, layers, heads]: times each head's output at the read position."""
    logits_as: Callable[[Tensor], Tensor] | None = None  # applied to all logits before their softmax
    draws: int = 1
    """How often each query is read at once: by as many changed models, or after as many contexts."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.model.dtype == torch.float64 else torch.float32

    def logits(self, computed: Tensor) -> Tensor:
        return computed if self.logits_as is None else self.logits_as(computed)


@torch.no_grad()
def read(reading: Reading, batch_size: int | None) -> list[Trace]:
    """One trace for each of the draws."""
    model, lesson, draws = reading.model, reading.lesson, reading.draws
    gathered: dict[str, Tensor] = {}
    window: int | None = None
    # One draw's queries behind the other's.
    count, limit = len(lesson.queries), draws * tensor_limit(model)
    with model.running():
        for batch in batches_of(model, lesson, reading.prefix, batch_size, draws):
            for part, found in halving(model, batch, partial(read_batch, reading)):
                values, window = found
                rows = [draw * count + query for draw in range(draws) for query in part.queries]
                _scatter(gathered, values, rows, draws * count, limit)
    lengths = torch.tensor([len(lesson.own_tokens(i)) for i in range(count)], device=model.device)
    labels = torch.tensor(lesson.labels, device=model.device)

    def trace(values: dict[str, Tensor]) -> Trace:
        return Trace(
            **{name: values.pop(name) for name in ("attn_out", "attn_scores", "residual", "label_logprobs")},
            label_logprobs_at_layer=values.pop("label_logprobs_at_layer", None),
            lengths=lengths,
            labels=labels,
            query_ids=lesson.query_ids,
            first_window=window,
            extras=values,
        )

    if draws == 1:
        return [trace(gathered)]
    own = [slice(draw * count, (draw + 1) * count) for draw in range(draws)]
    return [trace({name: values[rows] for name, values in gathered.items()}) for rows in own]


def read_batch(reading: Reading, batch: Batch) -> tuple[dict[str, Tensor], int | None]:
    """One batch: the pass that is recorded, then a short one for each label of several tokens; and layer 0's window."""
    model, lesson, want = reading.model, reading.lesson, reading.want
    batch = batch.times(reading.draws)
    several = any(len(answer) > 1 for answer in lesson.answers)
    session = Session(
        prefix=reading.prefix,
        start=reading.start,
        read=batch.read,
        lead=batch.lead,
        bos=len(lesson.bos),
        keep=several,
        plain=reading.plain,
        want=want,
        unembed=batch.prompt_end,
        final=batch.final,
        exits=batch.prompt_end,
        head_scales=None if reading.head_scales is None else reading.head_scales[batch.queries],
        acts=batch.prompt_end,
        query_ids=tuple(lesson.query_ids[i] for i in batch.queries),
    )
    with capturing(model, session):
        logits = model.forward(batch.tokens, reading.start)
    model.check(session)
    exits = session.stack("exits", model.device) if "exits" in want else None  # [batch, layers, 1, width]
    values = {
        name: session.stack(name, model.device).to(reading.dtype)
        for name in ("attn_out", "attn_scores", "residual", *_STACKED)
        if name in session.seen
    }
    return values | score_labels(reading, batch, session, logits, exits), session.rules[0].window


def score_labels(
    reading: Reading, batch: Batch, session: Session, logits: Tensor, exits: Tensor | None
) -> dict[str, Tensor]:
    """Mean log-probability of each label's tokens, from the final logits and, if asked, from every layer's."""
    model, answers = reading.model, reading.lesson.answers
    several = any(len(answer) > 1 for answer in answers)
    first = _log_probabilities(reading.logits(logits))
    final = _Scores(answers, first)
    layers = None
    if exits is not None and not several:
        # One token a label: only these rows of the unembedding are needed, and a common constant is lost.
        only = torch.tensor([answer[0] for answer in answers], device=model.device)
        at_layer = reading.logits(model.readout(exits.squeeze(2), rows=only)).to(reading.dtype).log_softmax(-1)
    elif exits is not None:
        layers = _Scores(answers, _log_probabilities(reading.logits(model.readout(exits))))
    for label, answer in enumerate(answers):
        if len(answer) > 1:
            more, more_exits = _continue(model, batch, session, label, answer[:-1])
            final.add(label, answer[1:], _log_probabilities(reading.logits(more)))
            if layers is not None and more_exits is not None:
                layers.add(label, answer[1:], _log_probabilities(reading.logits(model.readout(more_exits))))
    values = {"label_logprobs": final.means.to(reading.dtype)}
    if "next_tokens" in reading.want:
        values |= _next_tokens(reading, batch, first[:, 0])
    if exits is not None:
        found = at_layer if layers is None else layers.means.to(reading.dtype).log_softmax(-1)
        values["label_logprobs_at_layer"] = found
    return values


def _next_tokens(reading: Reading, batch: Batch, logprobs: Tensor) -> dict[str, Tensor]:
    """The likeliest next tokens, and the log-probabilities of those that the lesson watches (or else of the likeliest).

    Never of the whole vocabulary: [queries, LIKELIEST].
    """
    lesson = reading.lesson
    likeliest = logprobs.topk(min(LIKELIEST, logprobs.shape[-1]))
    found = {"top_tokens": likeliest.indices[:, :TOP]}
    if lesson.watched:
        ids = [lesson.watched[lesson.query_ids[i]] for i in batch.queries]
        values = logprobs.gather(1, torch.tensor(ids, device=logprobs.device))
    else:
        found["next_tokens"], values = likeliest.indices, likeliest.values
    return found | {"next_logprobs": values.to(reading.dtype)}


class _Scores:
    """Sums of the log-probabilities of each label's tokens: [..., classes]."""

    def __init__(self, answers: tuple[tuple[int, ...], ...], first: Tensor) -> None:
        self.lengths = torch.tensor([len(answer) for answer in answers], device=first.device)
        tokens = torch.tensor([answer[0] for answer in answers], device=first.device)
        self.sums = first[..., 0, :].index_select(-1, tokens)

    def add(self, label: int, tokens: tuple[int, ...], logprobs: Tensor) -> None:
        rows = torch.arange(len(tokens), device=logprobs.device)
        columns = torch.tensor(tokens, device=logprobs.device)
        self.sums[..., label] += logprobs[..., rows, columns].sum(-1)

    @property
    def means(self) -> Tensor:
        return self.sums / self.lengths


def _continue(
    model: Model, batch: Batch, session: Session, label: int, tokens: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """Logits (and layers' outputs) of tokens that follow the prompt of every query of the batch."""
    # Where a label has several tokens, all queries of a batch are equally long.
    assert isinstance(batch.prompt_end, int)
    end = batch.prompt_end + 1
    follow = Session(
        prefix=session.prefix,
        start=session.start + end,
        read=0 if "exits" in session.want else None,
        plain=session.plain,
        want=session.want & {"exits"},
        cached={layer: (k[:, :, :end], v[:, :, :end]) for layer, (k, v) in session.kept.items()},
        exits=slice(None),
        acts=slice(None),
        query_ids=session.query_ids,
        answer=label,
    )
    follow_tokens = torch.tensor(tokens, device=model.device).expand(len(batch.queries), -1)
    with capturing(model, follow):
        logits = model.forward(follow_tokens, follow.start)
    return logits, follow.stack("exits", model.device) if "exits" in session.want else None


def _log_probabilities(logits: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.log_softmax(-1)


def _scatter(
    gathered: dict[str, Tensor], values: dict[str, Tensor], queries: list[int], total: int, limit: int
) -> None:
    """Put a batch's values into the rows of its queries; scores are aligned at the right."""
    for name, value in values.items():
        if name not in gathered:
            # Batches come longest first, so the first one's scores are as wide as any.
            gathered[name] = (
                room_for(value, total, limit) if name in _LARGE else value.new_empty((total, *value.shape[1:]))
            )
            if name in _RIGHT_ALIGNED:
                gathered[name].fill_(torch.nan)
        whole = gathered[name]
        index, value = torch.tensor(queries, device=whole.device), value.to(whole.device)
        if name in _RIGHT_ALIGNED:
            whole[index, ..., whole.shape[-1] - value.shape[-1] :] = value
        else:
            whole[index] = value


# The same model with its sums taken in another order: what differs then is rounding, and nothing else.
#
# A second read at another batch size is often bitwise the first one, whatever rounding did to both. Here every linear
# layer adds up its inputs in parts, the last part first, attention is the plain one (see `Model.read`), and changes
# of weights act beside them, W x + dW x in place of (W + dW) x. All of these are the same numbers in exact
# arithmetic.


PARTS = 4
LINEAR = ("Linear", "FalconLinear", "Conv1D")  # torch's, Falcon's own of the same kind, and GPT-2's, kept as [in, out]


@contextmanager
def other_order(model: Model) -> Iterator[None]:
    """Inside, the model computes what it did, in another order; outside it is as before, also after an error."""
    with ExitStack() as stack:
        for module in _linear(model):
            module.forward = partial(_in_parts, module)
            stack.callback(module.__dict__.pop, "forward")
        stack.callback(setattr, model, "in_other_order", model.in_other_order)
        model.in_other_order = True
        yield


def _linear(model: Model) -> Iterator[nn.Module]:
    """Every plain linear layer but the unembedding, behind which nothing is captured."""
    head = model.hf.get_output_embeddings()
    for module in model.hf.modules():
        if type(module).__name__ in LINEAR and module is not head and "forward" not in module.__dict__:
            yield module


def _in_parts(module: Any, inputs: Tensor) -> Tensor:
    # Looked up now: a change may stand in the place of the weight, and carry a derivative.
    weight, bias = module.weight, module.bias
    weight = weight if isinstance(module, nn.Linear) else weight.T  # [out, in]
    width = inputs.shape[-1]
    edges = [width * part // PARTS for part in range(PARTS + 1)]
    rows = inputs.reshape(-1, width)
    out = rows[:, edges[-2] :] @ weight[:, edges[-2] :].T
    for first, last in zip(edges[-3::-1], edges[-2:0:-1], strict=True):
        out = torch.addmm(out, rows[:, first:last], weight[:, first:last].T)
    found: Tensor = out.view(*inputs.shape[:-1], -1)
    return found if bias is None else found + bias
