"""The dual's loss beside the losses of contrastive and of kernel learning.

The dual model of attention takes one step on -sum_i v_i . W phi(k_i). Other losses over the same pairs can be stepped
on as well, and each step is softmax attention too, with the same weights and other values: what a loss teaches is what
it puts in the place of v_i.

    dual            v_i                          a pull, and nothing else
    least squares   v_i - W phi_i                kernel regression: the error, so what is known adds nothing
    contrastive     v_i - sum_j p_ij v_j         InfoNCE: the pull less what the other tokens would pull
    cosine          (I - u_i u_i^T) v_i / |v_i|  SimSiam: the part of the pull that turns W phi_i, whose direction
                    over |W phi_i|               is u_i
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualscope.theory.attention_variants import negative_output
from dualscope.theory.features import FeatureMap
from dualscope.theory.identity import Draw, TwoSides, identity
from dualscope.theory.softmax_dual import Head, dual_model

# W phi(k_i) [n, d_v] and v_i [n, d_v] -> a loss, or the values [n, d_v].
Pairs = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss over pairs of what W says of a key and its value, and the values of the attention that its step is."""

    loss: Pairs
    values: Pairs


def _dual(said: Tensor, targets: Tensor) -> Tensor:
    return -(targets * said).sum()


def _squares(said: Tensor, targets: Tensor) -> Tensor:
    return ((targets - said) ** 2).sum() / 2


def _contrast(said: Tensor, targets: Tensor) -> Tensor:
    """InfoNCE: of all values, which one belongs to this key? Every other token is a negative."""
    return -(said @ targets.T).log_softmax(-1).diagonal().sum()


def _contrast_values(said: Tensor, targets: Tensor) -> Tensor:
    return targets - (said @ targets.T).softmax(-1) @ targets


def _cosine(said: Tensor, targets: Tensor) -> Tensor:
    return -torch.cosine_similarity(said, targets, dim=-1).sum()


def _cosine_values(said: Tensor, targets: Tensor) -> Tensor:
    size = said.norm(dim=-1, keepdim=True)
    wanted, has = targets / targets.norm(dim=-1, keepdim=True), said / size
    found: Tensor = (wanted - has * (has * wanted).sum(-1, keepdim=True)) / size
    return found


LOSSES = {
    "dual": Loss(_dual, lambda _said, targets: targets),
    "least squares": Loss(_squares, lambda said, targets: targets - said),
    "contrastive": Loss(_contrast, _contrast_values),
    "cosine": Loss(_cosine, _cosine_values),
}


def step_is_attention(head: Head, phi: FeatureMap, loss: Loss) -> TwoSides:
    """Left: the dual model after one step of autograd on another loss. Right: attention over that loss's values. [d_v]

    The step has size 1 / D. Tokens that are no demonstrations keep their values: they are the start W0.

    >>> head = Head.draw(Draw(0))
    >>> step_is_attention(head, head.gram_map(), LOSSES["contrastive"]).error < 1e-9
    True
    """
    dual = dual_model(head, phi)
    leaf = dual.start.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.loss(dual.inputs @ leaf.T, dual.targets), leaf)
    left = dual.predict(dual.start - gradient / dual.normaliser, head.query)
    return TwoSides(left, attention_of(head, phi, loss))


def attention_of(head: Head, phi: FeatureMap, loss: Loss) -> Tensor:
    """Softmax attention whose demonstrations have the values that a loss gives them. [d_v]"""
    dual = dual_model(head, phi)
    values = head.values.clone()
    values[: head.demonstrations] = loss.values(dual.inputs @ dual.start.T, dual.targets)
    return replace(head, values=values).output()


def smoother(head: Head) -> TwoSides:
    """Left: softmax attention. Right: the constant y that minimises sum_i K(k_i, q) |v_i - y|^2. Both [d_v].

    The oldest kernel regression (Nadaraya and Watson), solved here as weighted least squares.
    """
    root = (head.scores() - head.scores().max()).exp().sqrt().unsqueeze(-1)
    return TwoSides(head.output(), torch.linalg.lstsq(root, root * head.values).solution[0])


def _identity(name: str, statement: str, reference: str, loss: str) -> None:
    def check(draw: Draw) -> TwoSides:
        head = Head.draw(draw)
        return step_is_attention(head, head.gram_map(), LOSSES[loss])

    check.__module__ = __name__
    identity(name, statement, reference, 1e-9, 1e-2)(check)


_identity(
    "loss-least-squares",
    "a step of kernel least squares = attention over the errors vᵢ − Wφᵢ",
    "kernel regression",
    "least squares",
)
_identity(
    "loss-contrastive", "a step on InfoNCE = attention over vᵢ − Σⱼ pᵢⱼ vⱼ", "van den Oord et al. 2018", "contrastive"
)
_identity("loss-cosine", "a step on −cos = attention over the turning part of vᵢ", "Chen & He 2021 (SimSiam)", "cosine")


@identity(
    "loss-contrastive-negative",
    "InfoNCE from W = 0 = negative attention, β = 1, all tokens negatives",
    "after Ren & Liu",
    1e-9,
    1e-2,
)
def _negative(draw: Draw) -> TwoSides:
    head = Head.draw(draw, n=16, demonstrations=16)  # no other tokens: the start is 0
    everyone = torch.arange(16).expand(16, 16)
    step = step_is_attention(head, head.gram_map(), LOSSES["contrastive"]).left
    return TwoSides(step, negative_output(head, everyone, beta=1.0))


@identity("kernel-smoother", "attention = argmin_y Σᵢ K(kᵢ,q) |vᵢ − y|²", "Nadaraya 1964, Watson 1964")
def _smoother(draw: Draw) -> TwoSides:
    return smoother(Head.draw(draw))
