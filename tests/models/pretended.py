"""A second device that is not there: tensors that say they live on it, hold true numbers, and refuse to be mixed.

A tensor of the pretended device holds a CPU tensor and calls itself one of torch's `meta` device. Inside
`second_device` operations run on what is held, and one that meets tensors of both devices is refused, as on a real one.
Copies from one to the other, numbers without dimensions and indices are allowed, as they are there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

SECOND = torch.device("meta")
_aten: Any = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten.set_.source_Tensor}
_INDEXED = {
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
}  # fmt: skip
_JOINED = {_aten.cat.default, _aten.stack.default}  # here a number without dimensions is no exception


class Held(Tensor):
    """A tensor of the second device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Held":
        made: Held = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=SECOND,
            requires_grad=False,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # wraps its own
        return f"Held({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own is a function in place of a method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def second_device() -> Iterator[None]:
    """Inside, there is a second device: new tensors may be made on it, and mixing is an error."""
    numbers: Any = _Numbers()
    operations: Any = _Operations()  # type: ignore[no-untyped-call]  # torch has no type for it
    with numbers, operations:
        yield


class _Operations(TorchDispatchMode):
    """Every operation, also one that has no tensor yet."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Numbers(TorchFunctionMode):
    """Tensors that torch makes of Python's numbers on a meta device would drop them: they are made on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(torch.tensor(i) if isinstance(i, list) else i for i in at), *args[2:])
        if func not in (torch.tensor, torch.as_tensor) or not _is_second(kwargs.get("device")):
            return func(*args, **kwargs)
        device = kwargs.pop("device")
        return func(*args, **kwargs).to(device)


def _is_second(device: Any) -> bool:
    return device is not None and torch.device(device) == SECOND


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on what is held; its result is where the operation says, or else where its tensors are."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    refuse_mixed(func, args, tensors)
    some, asked = any(isinstance(tensor, Held) for tensor in tensors), kwargs.get("device")
    second = some if asked is None else _is_second(asked)
    if func is _aten.copy_.default:
        second = isinstance(args[0], Held)
    if func.name().startswith("aten::_foreach"):
        return _run_each(func, args, kwargs)
    plain_args, plain = tree_map_only(Held, lambda tensor: tensor.held, (args, kwargs))
    if asked is not None:
        plain = plain | {"device": torch.device("cpu") if second else asked}
    out = func(*plain_args, **plain)
    if not second:
        return out
    out = tree_map_only(Tensor, Held, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if some else out


def _run_each(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Of lists of tensors, which torch takes one after another where they are on several devices."""
    out = func(*tree_map_only(Held, lambda tensor: tensor.held, args), **kwargs)
    if out is None:
        return None
    return [Held(new) if isinstance(old, Held) else new for old, new in zip(args[0], out, strict=True)]


def refuse_mixed(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """As torch does for real devices."""
    if func in _COPIES:
        return
    if func.name().startswith("aten::_foreach"):
        for group in zip(*(arg for arg in args if isinstance(arg, list | tuple)), strict=True):
            _refuse(func, [tensor for tensor in group if isinstance(tensor, Tensor)])
        return
    if func in _INDEXED:  # the indices may be on the CPU, what is indexed and what is put there may not be mixed
        tensors = [args[0], *(leaf for leaf in args[2:3] if isinstance(leaf, Tensor))]
    _refuse(func, tensors)


def _refuse(func: Any, tensors: list[Tensor]) -> None:
    sized = [tensor for tensor in tensors if isinstance(tensor, Held) or tensor.ndim or func in _JOINED]
    if len({isinstance(tensor, Held) for tensor in sized}) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} found both")


class Follow(ModelHook):  # type: ignore[misc]  # accelerate has no types
    """What accelerate does before a module that was given a device: its inputs come to it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pre_forward(self, module: nn.Module, *args: Any, **options: Any) -> Any:
        return send_to_device(args, self.device), send_to_device(options, self.device)


class Return(Follow):
    """And after the whole model: its outputs come back to where the inputs were."""

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        return send_to_device(output, self.device)


def move(hf: nn.Module, places: dict[str, torch.device]) -> None:
    """A model's parts to their devices, and hooks that bring their inputs; tied weights stay tied."""
    made: dict[int, Tensor] = {}

    def there(tensor: Tensor, device: torch.device) -> Tensor:
        if id(tensor) not in made:
            moved: Tensor = tensor.detach() if device != SECOND else Held(tensor.detach())
            made[id(tensor)] = nn.Parameter(moved) if isinstance(tensor, nn.Parameter) else moved
        return made[id(tensor)]

    for path, module in hf.named_modules():
        device = next((d for name, d in places.items() if f"{path}.".startswith(f"{name}.")), None)
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for tensors in tables:
            for name, real in tensors.items():
                if real is not None:
                    assert device is not None, f"{path}.{name} has no device"
                    tensors[name] = there(real, device)
    for path, device in places.items():
        add_hook_to_module(hf.get_submodule(path), Follow(device))
    add_hook_to_module(hf, Return(next(iter(places.values()))))
