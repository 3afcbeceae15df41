"""Linear layers in float32 on a CPU by oneDNN's product; torch alone takes MKL's.

On processors that are not Intel's, MKL leaves half of the vector unit idle: the same product takes 2.2 times as long
(`python -m benchmarks.products`). The numbers are the same to float32's rounding. torch.compile calls the same
operation for a linear layer; where a build of torch does not have it, a layer's own forward pass stands.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from dualscope.models.model import Model

FEWEST_ROWS = 8  # of fewer, the call costs more than it saves


@cache
def is_available() -> bool:
    """Whether this build of torch, on this processor, has the operation.

    >>> isinstance(is_available(), bool)
    True
    """
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return wide and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b; ``weight`` is [out, in], of any strides."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    """The same with a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = errors[0].flatten(0, -2)
        again = torch.is_grad_enabled()  # this gradient will be differentiated, which the operation cannot be
        through = errors[0] @ weight if again else product(errors[0], weight.T, None)
        return (
            through if ctx.needs_input_grad[0] else None,
            rows.T @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


def forward(module: Any, x: Tensor) -> Tensor:
    """A linear layer's output. Its weights are looked up now: others may stand in their place."""
    weight, bias = module.weight, module.bias
    if not _suits(x, weight):
        own: Tensor = type(module).forward(module, x)
        return own
    weight = weight if isinstance(module, nn.Linear) else weight.T  # [out, in]
    needed = [one for one in (x, weight, bias) if one is not None and one.requires_grad]
    if not needed or not torch.is_grad_enabled():
        return product(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


def _suits(x: Tensor, weight: Tensor) -> bool:
    """Whether both are plain float32, with rows enough and no derivative carried forward."""
    plain = all(one.dtype == torch.float32 and one.device.type == "cpu" for one in (x, weight))
    transformed = forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None
    return plain and not transformed and x.ndim > 1 and x.numel() >= FEWEST_ROWS * x.shape[-1]


def linear_layers(hf: nn.Module) -> list[nn.Module]:
    """The modules whose ``forward`` may be this one: torch's linear layers and GPT-2's, which keep [in, out].

    >>> len(linear_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU())))
    1
    """
    from transformers.pytorch_utils import Conv1D

    return [module for module in hf.modules() if type(module) in (nn.Linear, Conv1D)]


def by_onednn(model: Model, stack: ExitStack) -> None:
    """Until the stack closes, the model's linear layers in float32 on a CPU are computed by oneDNN.

    A layer that computes something else for the moment is left to it.
    """
    if model.precision != "float32" or model.device.type != "cpu" or not is_available():
        return
    for module in model.linear_layers:
        if "forward" not in module.__dict__:
            module.forward = partial(forward, module)
            stack.callback(module.__dict__.pop, "forward")
