"""The dual form of in-context learning (Dai et al. 2023): demonstrations as an update of a zero-shot matrix.

Without softmax, a head that attends to demonstrations X' and to the query's own tokens X computes
(W_ZSL + dW_ICL) q with W_ZSL = W_V X (W_K X)^T and dW_ICL = W_V X' (W_K X')^T. With softmax there is an exact
counterpart too, but it is a convex mixture and not a sum: see `softmax_split`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualscope.theory.identity import Draw, TwoSides, identity

REFERENCE = "Dai et al. 2023"


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one attention layer: query, key, value [heads, head_dim, width], output [heads, width,
    head_dim].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @classmethod
    def draw(cls, draw: Draw, heads: int = 3, head_dim: int = 4, width: int = 12) -> "HeadWeights":
        shape = (heads, head_dim, width)
        query, key, value = (draw.normal(*shape) / width**0.5 for _ in range(3))
        return cls(query, key, value, draw.normal(heads, width, head_dim) / head_dim**0.5)


def w_zsl(heads: HeadWeights, own: Tensor) -> Tensor:
    """W_V X (W_K X)^T of every head: own [tokens, width] -> [heads, head_dim, head_dim]."""
    return (heads.value @ own.T) @ (heads.key @ own.T).mT


def dw_icl(heads: HeadWeights, demonstrations: Tensor) -> Tensor:
    """sum_i (W_V x'_i)(W_K x'_i)^T, one outer product at a time: [tokens, width] -> [heads, head_dim,
    head_dim].
    """
    update = heads.value.new_zeros(len(heads.value), heads.value.shape[1], heads.key.shape[1])
    for token in demonstrations:
        update = update + torch.einsum("ho,hi->hoi", heads.value @ token, heads.key @ token)
    return update


def linear_attention_layer(heads: HeadWeights, tokens: Tensor, x: Tensor) -> Tensor:
    """A layer without softmax: tokens [n, width], x [width] -> [width], the heads' outputs summed."""
    scores = torch.einsum("hdw,nw,hd->hn", heads.key, tokens, heads.query @ x)
    return torch.einsum("hwd,hdv,nv,hn->w", heads.output, heads.value, tokens, scores)


def icl_is_an_update(heads: HeadWeights, demonstrations: Tensor, own: Tensor, x: Tensor) -> TwoSides:
    """Left: linear attention over [X'; X]. Right: sum_h W_O (W_ZSL + dW_ICL) W_Q x. Both [width].

    >>> draw = Draw(0)
    >>> heads = HeadWeights.draw(draw)
    >>> icl_is_an_update(heads, draw.normal(20, 12), draw.normal(5, 12), draw.normal(12)).error < 1e-12
    True
    """
    left = linear_attention_layer(heads, torch.cat([demonstrations, own]), x)
    matrix = w_zsl(heads, own) + dw_icl(heads, demonstrations)
    return TwoSides(left, torch.einsum("hwd,hde,he->w", heads.output, matrix, heads.query @ x))


def dw_finetuned(heads: HeadWeights, d_key: Tensor, d_value: Tensor, own: Tensor) -> Tensor:
    """dW_FT: what changed keys and values do to W_ZSL. d_key, d_value [heads, head_dim, width] -> [heads,
    hd, hd].
    """
    gram = own.T @ own  # X X^T, [width, width]
    first_order = d_value @ gram @ heads.key.mT + heads.value @ gram @ d_key.mT
    return first_order + d_value @ gram @ d_key.mT


def finetuning_is_an_update(heads: HeadWeights, d_key: Tensor, d_value: Tensor, own: Tensor, x: Tensor) -> TwoSides:
    """Left: the layer with W_K + dW_K and W_V + dW_V. Right: sum_h W_O (W_ZSL + dW_FT) W_Q x. Both [width]."""
    tuned = HeadWeights(heads.query, heads.key + d_key, heads.value + d_value, heads.output)
    matrix = w_zsl(heads, own) + dw_finetuned(heads, d_key, d_value, own)
    right = torch.einsum("hwd,hde,he->w", heads.output, matrix, heads.query @ x)
    return TwoSides(linear_attention_layer(tuned, own, x), right)


def attend(scores: Tensor, values: Tensor) -> Tensor:
    """softmax(scores) @ values: scores [..., n], values [..., n, d] -> [..., d]."""
    return torch.einsum("...n,...nd->...d", scores.softmax(-1), values)


def demonstration_mass(scores: Tensor, demonstrations: int) -> Tensor:
    """lam = sigmoid(lse_demos - lse_rest), the softmax weight on the first tokens: scores [..., n] -> [...]."""
    demos, rest = scores[..., :demonstrations], scores[..., demonstrations:]
    return torch.sigmoid(demos.logsumexp(-1) - rest.logsumexp(-1))


def softmax_split(scores: Tensor, values: Tensor, demonstrations: int) -> TwoSides:
    """Left: attention over all tokens. Right: lam Attn(demos) + (1 - lam) Attn(rest). Both [..., d].

    scores [..., n], values [..., n, d]; the first `demonstrations` tokens are the demonstrations. The
    second term is the zero-shot output, so in-context learning moves the output by lam (Attn(demos) -
    Attn(rest)).

    >>> draw = Draw(0)
    >>> softmax_split(draw.normal(9), draw.normal(9, 4), demonstrations=6).error < 1e-12
    True
    """
    lam = demonstration_mass(scores, demonstrations).unsqueeze(-1)
    demos = attend(scores[..., :demonstrations], values[..., :demonstrations, :])
    rest = attend(scores[..., demonstrations:], values[..., demonstrations:, :])
    return TwoSides(attend(scores, values), lam * demos + (1 - lam) * rest)


@identity("icl-dual-form", "LinearAttn([X'; X]) = Σ_h W_O (W_ZSL + ΔW_ICL) W_Q x, 3 heads", REFERENCE)
def _icl(draw: Draw) -> TwoSides:
    return icl_is_an_update(HeadWeights.draw(draw), draw.normal(40, 12), draw.normal(9, 12), draw.normal(12))


@identity("finetuning-dual-form", "(W_V+ΔW_V) XXᵀ (W_K+ΔW_K)ᵀ q = (W_ZSL + ΔW_FT) q, 3 heads", REFERENCE)
def _finetuned(draw: Draw) -> TwoSides:
    heads, change = HeadWeights.draw(draw), HeadWeights.draw(draw)
    return finetuning_is_an_update(heads, change.key, change.value, draw.normal(9, 12), draw.normal(12))


@identity("softmax-split", "Attn = λ Attn(demos) + (1−λ) Attn(rest), λ = σ(lse_demos − lse_rest)", "exact counterpart")
def _split(draw: Draw) -> TwoSides:
    return softmax_split(2 * draw.normal(3, 49), draw.normal(3, 49, 4), demonstrations=40)
