"""The theory on real models: the dual of one head, from captured queries, keys and values, and the context as a change
of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualscope.core.errors import InputError
from dualscope.models.reading.context_patch import patch_of
from dualscope.theory.icl_dual import demonstration_mass, softmax_split
from dualscope.theory.identity import TwoSides
from dualscope.theory.linear_layer import linear_attention
from dualscope.theory.softmax_dual import Head, dual_model, kernel_trick

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.models.reading.prefix import Prefix
    from dualscope.tasks.episode import Episode
    from dualscope.tasks.lesson import Lesson


@dataclass(frozen=True)
class HeadDual:
    """One head at the read position of one query, after the demonstrations. All float64, on the CPU.

    ``output`` is what the model's own pass handed to its output projection; every other number is computed
    from ``head``. In ``head`` the demonstrations (separators included) come first, then BOS and the query's
    own tokens; keys and query are scaled by the square root of the model's scaling. An attention sink (gpt-oss),
    which takes weight and gives nothing, is the last token: its key and value are 0, its bias is its logit.
    """

    head: Head
    output: Tensor  # [d_v]
    scaling: float
    layer: int
    number: int  # of the head

    @property
    def dw_icl(self) -> Tensor:
        """sum over demonstration tokens of v k^T, the update of the linear dual form: [d_v, d]."""
        return self.head.values[: self.head.demonstrations].T @ self.head.keys[: self.head.demonstrations]

    @property
    def w_zsl(self) -> Tensor:
        """The same sum over BOS and the query's own tokens: [d_v, d]."""
        return self.head.values[self.head.demonstrations :].T @ self.head.keys[self.head.demonstrations :]

    @property
    def mass(self) -> float:
        """lam: the softmax weight on the demonstrations."""
        return float(demonstration_mass(self.head.scores(), self.head.demonstrations))

    @property
    def split(self) -> TwoSides:
        """Left: the model's output. Right: lam Attn(demonstrations) + (1 - lam) Attn(rest). Both [d_v]."""
        right = softmax_split(self.head.scores(), self.head.values, self.head.demonstrations).right
        return TwoSides(self.output, right)

    @property
    def kernel(self) -> TwoSides:
        """Left: the model's output. Right: the dual model's step by the kernel trick. Both [d_v]."""
        return TwoSides(self.output, kernel_trick(self.head).right)

    @property
    def dual(self) -> TwoSides:
        """Left: the model's output. Right: the dual model W phi(q) after one step of autograd. Both [d_v]."""
        head = self.head.balanced()
        model = dual_model(head, head.gram_map())
        return TwoSides(self.output, model.predict(model.step(model.start), head.query))

    @property
    def linear(self) -> TwoSides:
        """Left: the head without softmax over all its tokens. Right: (W_ZSL + dW_ICL) q. Both [d_v].

        These agree with each other; how far they are from ``output`` is what leaving softmax out costs.
        """
        left = linear_attention(self.head.values, self.head.keys, self.head.query)
        return TwoSides(left, (self.w_zsl + self.dw_icl) @ self.head.query)


@torch.no_grad()
def _capture(
    model: Model, tokens: tuple[int, ...], layer: int, number: int
) -> tuple[float, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scaling, query [d], keys [n, d], values [n, d_v], scores [n] and output [d_v] of the last token."""
    from dualscope.models.capture.hooks import capturing
    from dualscope.models.capture.session import Session

    session = Session(read=len(tokens) - 1, keep=True, plain=True, want=frozenset({"query_vectors"}))
    outputs: list[Tensor] = []

    def keep_output(_: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        outputs.append(args[0][0, -1])

    projection = model.attentions[layer].get_submodule(model.family.output)
    handle = projection.register_forward_pre_hook(keep_output)
    try:
        with model.running(), capturing(model, session):
            model.forward(torch.tensor([tokens], device=model.device), keep=1)
    finally:
        handle.remove()
    model.check(session)
    keys, values = (tensor[0] for tensor in session.kept[layer])  # [kv_heads, n, d]
    group = number * len(keys) // model.n_heads
    query = session.seen["query_vectors"][layer][0].reshape(model.n_heads, -1)[number]
    scores = session.seen["attn_scores"][layer][0, number]
    output = outputs[0].reshape(model.n_heads, -1)[number]
    query, key, value, scores, output = (
        tensor.double().cpu() for tensor in (query, keys[group], values[group], scores, output)
    )
    return session.rules[layer].scaling, query, key, value, scores, output


def dual_of(model: Model, lesson: Lesson | Episode, layer: int, head: int, query: int = 0) -> HeadDual:
    """The dual of one head, for one query of an episode, after all its demonstrations.

    ``dual_of(model, episode, layer=3, head=0).split.error`` says how exact the softmax split is; ``.dual`` is
    the dual model's prediction, ``.dw_icl`` the update of the linear form, ``.mass`` the weight on the
    demonstrations.
    """
    from dualscope.models.attention_kinds.install import kind_in
    from dualscope.tasks.lesson import Lesson, make_lesson

    if not isinstance(lesson, Lesson):
        lesson = make_lesson(lesson, model.tokenizer, model.max_positions)
    for name, value, count in (
        ("layer", layer, model.n_layers),
        ("head", head, model.n_heads),
        ("query", query, len(lesson.queries)),
    ):
        if not 0 <= value < count:
            raise InputError(f"{name} {value}: {model.name} has {name} numbers 0 to {count - 1} here")
    if (kind := kind_in(model.attentions[layer])) is not None:
        name = kind.described()["name"]
        raise InputError(
            f"{model.name}: '{name}' attention is no softmax over its values, so this dual is not its own; "
            "dualscope.theory.attention_variants has the duals of such attentions"
        )
    tokens = lesson.context + lesson.own_tokens(query)
    scaling, q, keys, values, scores, output = _capture(model, tokens, layer, head)
    seen = ~scores.isnan()  # a sliding window hides keys
    position = torch.arange(len(tokens))
    in_demonstrations = (position >= len(lesson.bos)) & (position < len(lesson.context))
    order = torch.cat([position[seen & in_demonstrations], position[seen & ~in_demonstrations]])
    root = scaling**0.5
    # Zero but for rounding where there is neither softcap nor position bias. Elsewhere the dual stays exact, with
    # features that the bias scales.
    bias = scores[order] - scaling * keys[order] @ q
    keys, values = root * keys[order], values[order]
    sinks = getattr(model.attentions[layer], "sinks", None)  # so named by every model that has them
    if sinks is not None:
        keys, values = (torch.cat([each, each.new_zeros(1, each.shape[-1])]) for each in (keys, values))
        bias = torch.cat([bias, sinks.detach()[head].to(bias).reshape(1)])
    part = Head(root * q, keys, values, int((seen & in_demonstrations).sum()), bias)
    return HeadDual(part, output, scaling, layer, head)


# The context as a change of weights (Dherin et al. 2025), checked on a real model.
#
# Not one of the identities that are drawn at random: it needs a model and a task.


TOLERANCE = 1e-10
BATCH = 8  # the same for both sides, so that their rows stand in the same order


@dataclass(frozen=True)
class Patched:
    """The logits of the model without the context, patched, and of the model with it: [queries, vocabulary]."""

    sides: TwoSides
    parallel: bool  # the MLP does not see the attention, so that the vector alone remains
    gated: bool

    @property
    def in_words(self) -> str:
        if self.parallel:
            return "attention and MLP run side by side: no weight changes, the vector m_c - m alone remains"
        inputs = "both input projections of the gated MLP" if self.gated else "the MLP's input projection"
        return f"dW = W (u_c - u) u^T / |u|^2 on {inputs}, and the vector m_c - m"


def context_patch(model: Model, lesson: Lesson) -> Patched:
    """Both sides on every query of a lesson. Exact for any weights, trained or not; give it a model in float64."""
    prefix = model.prefix(lesson.context)
    patch = patch_of(model, lesson, prefix)
    right = _logits(model, lesson, prefix)
    with patch.applied(model):
        left = _logits(model, lesson, None)
    first = patch.mlps[0]
    return Patched(TwoSides(left, right), first.parallel, len(first.inputs) > 1)


@torch.no_grad()
def _logits(model: Model, lesson: Lesson, prefix: Prefix | None) -> Tensor:
    """What the unembedding gives where labels are predicted, in the order in which the queries are read."""
    seen: list[Tensor] = []

    def keep(_: torch.nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output.reshape(-1, output.shape[-1]))

    handle = model.hf.get_output_embeddings().register_forward_hook(keep)
    try:
        model.read(lesson, prefix, batch_size=BATCH)
    finally:
        handle.remove()
    return torch.cat(seen)
