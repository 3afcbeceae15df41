"""Changes of the key and value parts that act beside the weights: W x + dW x.

The weights are never touched, so there is nothing to keep a copy of and nothing to put back; and 16-bit weights, which
would swallow a small change, do not have to hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.models.parts import Part


@contextmanager
def beside(model: Model, parts: Sequence[Part], changes: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside ``with`` the projections give what they would with ``changes`` (part name -> [out, in] or [out]) added."""
    by_module: dict[str, list[Part]] = {}
    for part in parts:
        by_module.setdefault(part.parameter.rpartition(".")[0], []).append(part)
    with ExitStack() as stack:
        for path, own in by_module.items():
            module = model.hf.get_submodule(path)
            stack.callback(module.register_forward_hook(_hook(own, changes)).remove)
        yield


def _hook(parts: Sequence[Part], changes: Mapping[str, Tensor]) -> Any:
    weights = [part for part in parts if part.kind == "weight"]
    biases = {part.role: part for part in parts if part.kind == "bias"}

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = args[0]
        output = output.clone() if output.is_leaf else output
        for part in weights:
            bias = biases.get(part.role)
            add = F.linear(
                x,
                changes[part.name].to(x.dtype),
                None if bias is None else changes[bias.name].to(x.dtype),
            )
            view = part.view_output(output)
            view += add.view(view.shape)
        for role, bias in biases.items():
            if all(part.role != role for part in weights):
                view = bias.view_output(output)
                view += changes[bias.name].to(x.dtype).view(view.shape[-1 if bias.head is None else -2 :])
        return output

    return hook
