"""Gradient descent written as weights of a transformer, for many step sizes at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.models.capture.attention_kernel import register
from dualscope.regression.architectures.transformer import Transformer
from dualscope.regression.baselines import half_mse
from dualscope.regression.problems import TaskBatch
from dualscope.theory import linear_attention_step as vonoswald
from dualscope.theory.linear_attention_step import Layer, gd_layer

if TYPE_CHECKING:
    from transformers import GPT2Model


def gd_transformer(etas: Sequence[float], depth: int, d: int, n: int, gammas: Sequence[float] = ()) -> Transformer:
    """``depth`` recurrent linear layers that are so many steps of GD (of GD++ with a gamma), a copy for
    each eta.
    """
    model = Transformer(d + 1, depth, [torch.Generator()] * len(etas), recurrent=True)
    layers = [
        vonoswald.gd_layer(torch.zeros(1, d), eta, n, gamma)
        for eta, gamma in zip(etas, gammas or [0.0] * len(etas), strict=True)
    ]
    with torch.no_grad():
        model.key.copy_(torch.stack([layer.key for layer in layers])[:, None, None])
        model.query.copy_(torch.stack([layer.query for layer in layers])[:, None, None])
        model.value.copy_(torch.stack([layer.value for layer in layers])[:, None, None])
        # The construction sums over the examples, the transformer averages.
        model.output.copy_(n * torch.stack([layer.projection for layer in layers])[:, None, None])
    return model.requires_grad_(False)


def best_eta(batch: TaskBatch, steps: int, last: float = 25.0) -> float:
    """Line search on training draws (no leading dimension) for the rate of ``steps`` GD steps, to 0.1.

    The loss falls, then rises with the rate, so a coarse look says where to look closely.
    """
    start = torch.zeros(1, batch.x.shape[-1])

    def loss(eta: float) -> float:
        weight = vonoswald.gd_steps(batch.x, batch.y.unsqueeze(-1), start, eta, steps)  # [tasks, 1, d]
        found = 0.5 * ((weight.squeeze(-2) * batch.query).sum(-1) - batch.target).square().mean().item()
        return found if found == found else float("inf")

    coarse = min(torch.arange(0.001, last, 1.0).tolist(), key=loss)
    result: float = min((torch.arange(-10, 11) / 10 + coarse).clamp(min=0.001).tolist(), key=loss)
    return result


def best_eta_gamma(batch: TaskBatch, depth: int, eta: float) -> tuple[float, float]:
    """Simplex search on training draws for the two numbers of GD++, from GD's own step size."""
    from scipy.optimize import minimize

    n, d = batch.x.shape[-2:]
    one = repeat(batch, 1)

    def loss(point: Sequence[float]) -> float:
        model = gd_transformer([float(point[0])], depth, d, n, [float(point[1])])
        return float(torch.nan_to_num(half_mse(model.predict, one), nan=1e9))

    start = [[eta, 0.0], [eta * 1.3, 0.1], [eta, 0.2]]
    found = minimize(loss, start[0], method="Nelder-Mead", options={"initial_simplex": start, "maxfev": 50})
    return float(found.x[0]), float(found.x[1])


def repeat(batch: TaskBatch, copies: int) -> TaskBatch:
    """The same tasks for every copy."""
    return TaskBatch(*(part.expand(copies, *part.shape) for part in (batch.x, batch.y, batch.query, batch.target)))


# Gradient descent as the weights of transformers' own GPT-2: von Oswald et al.'s construction inside its code path.
#
# GPT-2 differs from bare linear attention in four ways, and each is undone by weights alone or by the one thing that
# must be exchanged: softmax (a linear attention is registered with transformers' attention interface), layer norm (two
# constant entries dwarf the rest, so that the norm divides by a known number, which its weights multiply back), the
# MLP (zero), and biases and positions (zero).


NAME = "dualscope-linear-attention"
LARGE = 1e6  # of the constant entries: |token|^2 / LARGE^2 must vanish in float64, and so must LARGE times its rounding


def linear_attention(
    _module: nn.Module,
    query: Tensor,  # [batch, heads, queries, head_dim]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """V K^T q: no softmax, no scale; hidden keys count for nothing."""
    weights = query @ key.mT
    if attention_mask is not None:
        weights = weights.masked_fill(attention_mask < torch.finfo(attention_mask.dtype).min / 2, 0.0)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def gpt2_of(layers: int, d: int, n: int, eta: float, gamma: float = 0.0) -> "GPT2Model":
    """A GPT2Model in float64 of which every block is one step of GD (GD++ with a gamma) on n examples in d inputs."""
    from transformers import GPT2Config, GPT2Model

    register(NAME, linear_attention)
    width = 2 * (d + 1) + 2
    config = GPT2Config(
        vocab_size=1, bos_token_id=0, eos_token_id=0, n_positions=n + 1, n_embd=width, n_layer=layers, n_head=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        attn_implementation=NAME,  # type: ignore[call-arg]  # of every configuration, by its base class
    )  # fmt: skip
    model: GPT2Model = GPT2Model(config).double().eval().requires_grad_(False)
    construction = gd_layer(torch.zeros(1, d, dtype=torch.float64), eta, n, gamma)
    for parameter in model.parameters():
        parameter.zero_()
    for block in model.h:
        _write(block, construction, d + 1)
    # The last norm gives the tokens back; it divides as every other does.
    model.ln_f.weight.fill_(_spread(width))
    return model


def embed(tokens: Tensor) -> Tensor:
    """(e, -e, LARGE, -LARGE): mean 0, and a standard deviation that does not depend on e. [..., 2 dim + 2]"""
    large = torch.full_like(tokens[..., :1], LARGE)
    return torch.cat([tokens, -tokens, large, -large], -1)


def causal_free_mask(n: int) -> Tensor:
    """Every token sees the n examples, and no token sees the query: [1, 1, n + 1, n + 1], additive."""
    mask = torch.zeros(1, 1, n + 1, n + 1, dtype=torch.float64)
    mask[..., -1] = torch.finfo(mask.dtype).min
    return mask


def _spread(width: int) -> float:
    """What a layer norm divides by."""
    return float(LARGE * (2 / width) ** 0.5)


def _write(block: Any, layer: Layer, dim: int) -> None:
    """e is the first ``dim`` entries; what is added to e is taken from -e, so that the mean stays 0."""
    width = block.ln_1.weight.shape[0]
    block.ln_1.weight.fill_(_spread(width))
    block.ln_2.weight.fill_(_spread(width))
    # Conv1D keeps its weight transposed: [in, out].
    for number, matrix in enumerate((layer.query, layer.key, layer.value)):
        block.attn.c_attn.weight[:dim, number * width : number * width + dim] = matrix.T
    block.attn.c_proj.weight[:dim, :dim] = layer.projection.T
    block.attn.c_proj.weight[:dim, dim : 2 * dim] = -layer.projection.T
