"""A captured model computes what the plain one does, and a shared context gives what a full one gives; a model for
which that does not hold is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.command_hints import called
from dualscope.core.errors import InputError
from dualscope.models.capture.hooks import capturing
from dualscope.models.capture.session import Session
from dualscope.models.model import Model

if TYPE_CHECKING:
    from dualscope.tasks.lesson import Lesson


GROSS = {"float64": 5e-3, "float32": 5e-3, "tf32": 5e-2, "bfloat16": 0.25, "float16": 0.25}
"""What is no rounding any more, for logits up to 1: masks and states that we do not know of."""


@dataclass(frozen=True)
class Logits:
    """The last token's logits, on the CPU in float64: [queries, vocabulary] each."""

    plain: Tensor  # the module as it is, full context
    captured: Tensor  # while it is captured, full context
    shared: Tensor  # while it is captured, after a prefix that was encoded once
    readout: Tensor  # the same, read off the last layer's residual as learners read it off any layer
    calls: int  # attention calls in one captured pass


@torch.no_grad()
def logits_of(model: Model, lesson: "Lesson", queries: int = 4, eager: bool = True) -> Logits:
    """Of a few queries of a lesson, the shortest and the longest among them, one at a time.

    ``eager``: the plain module computes by transformers' plain attention, else by the one that it was loaded with.
    """
    check_tokens(model, lesson)
    ordered = sorted(lesson.queries, key=len)
    step = max(1, (len(ordered) - 1) // max(1, queries - 1))
    chosen = [*ordered[::step][: queries - 1], ordered[-1]]
    rows: dict[str, list[Tensor]] = {"plain": [], "captured": [], "shared": [], "readout": []}
    prefix = model.prefix(lesson.context)
    with model.running():
        for own in chosen:
            full = torch.tensor([[*lesson.context, *own]], device=model.device)
            with _eager(model) if eager else nullcontext():
                rows["plain"].append(model.forward(full, keep=1))
            session = Session(read=full.shape[1] - 1)
            with capturing(model, session):
                rows["captured"].append(model.forward(full, keep=1))
            after = Session(prefix=prefix, start=len(prefix), read=len(own) - 1, final=len(own) - 1)
            with capturing(model, after):
                rows["shared"].append(model.forward(torch.tensor([own], device=model.device), len(prefix), keep=1))
            rows["readout"].append(model.readout(after.seen["residual"][model.n_layers - 1][:, None]))
    found = {name: torch.cat([row[:, -1].cpu().double() for row in those]) for name, those in rows.items()}
    return Logits(**found, calls=session.calls)


def check_tokens(model: Model, lesson: "Lesson") -> None:
    """The tokenizer must be this model's: a token beyond the embeddings would be an error deep inside."""
    size = int(model.hf.get_input_embeddings().weight.shape[0])
    highest = max(map(max, filter(None, (lesson.context, *lesson.queries, *lesson.answers))))
    if highest >= size:
        raise InputError(
            f"{model.name}: its tokenizer made the token {highest}, and the model has embeddings for {size}; "
            "they are not of the same model"
        )


def assure(model: Model, lesson: "Lesson") -> None:
    """Refuse a model whose context does not reach a query as we think it does: by attention alone, under a causal mask
    or a sliding one.

    Listed families are tested; another may have a recurrent state beside attention, or masks of its own, and would be
    measured wrongly without a word.
    """
    if model.family.tested:
        return
    found = logits_of(model, lesson, queries=1, eager=False)
    size = max(1.0, float(found.plain.abs().max()))
    gap = float((found.shared - found.plain).abs().max())
    if not gap <= GROSS[model.precision] * size:  # also where it is NaN
        raise InputError(
            f"model '{model.name}': its logits after a shared context differ by {gap:.2g} from those of the whole "
            f"text, so the architecture '{model.family.name}' cannot be measured; see: "
            f"{called('doctor', '--model', model.name)}"
        )
    gap = float((found.readout - found.shared).abs().max())
    if not gap <= GROSS[model.precision] * size:
        raise InputError(
            f"model '{model.name}': its last layer, read off through the final norm and the unembedding, differs by "
            f"{gap:.2g} from its logits, so the architecture '{model.family.name}' does something in between that is "
            f"not known here, and no layer can be read off; see: {called('doctor', '--model', model.name)}"
        )


@contextmanager
def _eager(model: Model) -> Iterator[None]:
    """transformers' own plain attention, in place of its fused ones; our own attention kinds are left alone."""
    before = model.hf.config._attn_implementation
    changeable = model.hf._can_set_attn_implementation()  # else transformers would only warn
    if before not in ("sdpa", "flash_attention_2", "flex_attention") or not changeable:
        yield
        return
    model.hf.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.hf.set_attn_implementation(before)
