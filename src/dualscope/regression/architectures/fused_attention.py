"""Causal attention of several copies in one kernel, forward and backward.

Under ``vmap`` PyTorch's fused attention has no backward pass on a GPU, and without it the weights of every pair of
tokens are written and read a dozen times a step. Here the copies join the batch, and the kernel never sees ``vmap``.
"""

from typing import Any, cast

import torch
from torch import Tensor

NAME = "dualscope-copies"
_HALF = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
Gradients = tuple[Tensor, Tensor, Tensor]


def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[batch, heads, tokens, dim] each -> the output, and what the way back needs: log-sum-exps and, of kernels with
    dropout, which we never ask for, two states of a generator.
    """
    if query.is_cuda:
        found = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, scale=scale)
        return found[0], found[1], found[6], found[7]
    output, sums = _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True, scale=scale)
    return output, sums, query.new_empty(0), query.new_empty(0)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    seed: Tensor,
    offset: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    given = (gradient, query, key, value, output, sums)
    if query.is_cuda:
        back = _aten._scaled_dot_product_flash_attention_backward
        length = query.shape[-2]
        return cast("Gradients", back(*given, None, None, length, length, 0.0, True, seed, offset, scale=scale))
    back = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    return cast("Gradients", back(*given, 0.0, True, scale=scale))


# Shapes and strides are asked of the kernels themselves, so that a compiler is told the truth.
causal = torch.library.custom_op("dualscope::causal_attention", _forward, mutates_args=())
causal.register_fake(_forward)
_causal_backward = torch.library.custom_op("dualscope::causal_attention_backward", _backward, mutates_args=())
_causal_backward.register_fake(_backward)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _way_back(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_causal_backward(gradient, *ctx.saved_tensors, ctx.scale), None)


def _over_copies(
    info: Any, dims: tuple[int | None, ...], query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    joined = [
        one.expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip((query, key, value), dims, strict=False)
    ]
    output, sums, *states = causal(*(one.flatten(0, 1) for one in joined), scale)
    apart = (info.batch_size, -1)
    return (output.unflatten(0, apart), sums.unflatten(0, apart), *states), (0, 0, None, None)


causal.register_autograd(_way_back, setup_context=_remember)
causal.register_vmap(_over_copies)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def fusible(device: torch.device, dim: int) -> bool:
    """Whether there is such a kernel for heads of that size: on NVIDIA's GPUs since Ampere, and on CPUs."""
    if device.type != "cuda":
        return device.type == "cpu"
    recent = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return recent and dim % 8 == 0 and dim <= 256


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """For transformers' interface: fused in half precision, in which trainings on a GPU are; else step by step, as
    transformers' own, because what is measured is measured in float32. Prompts have no padding: the mask is causal.
    """
    if query.dtype not in _HALF or not fusible(query.device, query.shape[-1]):
        from transformers.models.gpt2.modeling_gpt2 import eager_attention_forward

        found: tuple[Tensor, Tensor] = eager_attention_forward(
            module, query, key, value, attention_mask, scaling, **options
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return causal(query, key, value, scale)[0].transpose(1, 2), None


def register() -> str:
    """The name under which transformers knows it from now on."""
    from dualscope.models.capture import kernel

    kernel.register(NAME, attention)
    return NAME
