"""A change that acts beside the weights: W x + dW x."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from dualscope.models.model import Model


@contextmanager
def shadowed(
    model: Model, changes: Mapping[str, Tensor], active: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Add ``changes`` (parameter name -> tensor of its shape) without touching the weights, inside ``with``.

    The change may be wider than the weights, may require a gradient, and may carry a forward-mode tangent. It acts
    only while ``active`` says so.
    """
    by_module: dict[str, dict[str, Tensor]] = {}
    for name, change in changes.items():
        path, _, leaf = name.rpartition(".")
        by_module.setdefault(path, {})[leaf] = change
    with ExitStack() as stack:
        for path, own in by_module.items():
            module = model.hf.get_submodule(path)
            _check(path, module)
            stack.enter_context(module.register_forward_hook(beside(module, own, active)))
        yield


def beside(
    module: nn.Module, own: Mapping[str, Tensor], active: Callable[[], bool]
) -> Callable[..., Tensor | None]:
    """A forward hook that adds what the module would give with ``own`` in the place of its weights.

    That is the change of its output, because a projection is linear in its weight and bias together.
    """
    running = False  # the module is called from its own hook, which then has to keep out of the way
    dtype = next(iter(own.values())).dtype
    rest = {
        name: torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        for name, parameter in module.named_parameters(recurse=False)
        if name not in own
    }

    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        nonlocal running
        if running or not active():
            return None
        running = True
        try:
            change = functional_call(module, {**rest, **own}, tuple(a.to(dtype) for a in args))
        finally:
            running = False
        return (output.to(dtype) + change).to(output.dtype)

    return hook


def _check(path: str, module: nn.Module) -> None:
    # Linear (Falcon's is a kind of it) and GPT-2's Conv1D; anything else may not be linear in its parameters.
    if not isinstance(module, nn.Linear) and type(module).__name__ != "Conv1D":
        raise InputError(
            f"'{path}' is a {type(module).__name__}: a change beside the weights needs a linear layer; "
            "load the model with --dtype float32"
        )
