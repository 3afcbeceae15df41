"""The same model with its sums taken in another order: what differs then is rounding, and nothing else.

A second read at another batch size is often bitwise the first one, whatever rounding did to both. Here every linear
layer adds up its inputs in parts, the last part first, attention is the plain one (see `Model.read`), and changes of
weights act beside them, W x + dW x in place of (W + dW) x. All of these are the same numbers in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from dualscope.models.model import Model

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
