"""What cells share with a plugin's code: looked at before it runs and after, and put back.

A plugin has all rights of the process, so this is no wall. It finds what a learner or metric changes by mistake and
what would then change other cells unseen: traces and caches that were handed to it, the settings of torch, the
attributes of the model's modules, functions and classes that it replaced, and threads that outlive it.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dualscope.studies.plugins import MODULE

if TYPE_CHECKING:
    from dualscope.learners import Bench


FAREWELL = 5.0  # seconds for threads to end
PLAIN = (bool, int, float, str, bytes, tuple, type(None))
LIBRARIES = ("torch", "torch.nn.functional", "numpy", "math", "time", "random")


class SharedState:
    """All that the cells of a bench share, as it is before a plugin's code runs."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._settings = _settings()
        if bench.lesson.shots_used:
            _ = bench.in_context  # computed before a plugin can change the model
        self._learned, self._once = dict(bench._learned), dict(bench._once)
        self._sums = _sums(self._shared())
        self._attributes = _attributes(bench.model.hf)
        self._functions = _functions(bench.model.hf)
        self._threads = set(threading.enumerate())

    def _shared(self) -> Iterator[tuple[str, Any]]:
        for learning, learned in self._learned.items():
            yield f"the trace of {learning.label}", learned.trace
        if self.bench.is_encoded:
            yield "the encoded context", self.bench.prefix

    def restore(self) -> str | None:
        """Put back what can be, and say what was changed that others would have met; None where nothing was."""
        _set(self._settings)  # first: with another default type torch itself names other classes
        patched = _patched(self._functions)
        # What the plugin's code asked for is computed anew for others: it may have changed that, too.
        self.bench._learned, self.bench._once = self._learned, self._once
        now = _sums(self._shared())
        for name, found in self._sums.items():
            if now.get(name) != found:
                return name
        attributes = _attributes(self.bench.model.hf)
        for name in {**self._attributes, **attributes}:
            if self._attributes.get(name, self) != attributes.get(name, self):
                return f"the model's attribute '{name}'"
        if patched is not None:
            return f"{patched}, which was put back"
        late = [thread for thread in _of_plugins() if thread not in self._threads]
        for thread in late:
            thread.join(FAREWELL / len(late))
        if any(thread.is_alive() for thread in late):
            return "a thread that goes on running"
        return None


def left_running() -> bool:
    """Whether a thread of a plugin runs that may change anything at any time."""
    return bool(_of_plugins())


def _of_plugins() -> list[threading.Thread]:
    def home(thread: threading.Thread) -> str:
        target = getattr(thread, "_target", None)
        return str(getattr(target, "__module__", "") or "") + " " + type(thread).__module__

    return [one for one in threading.enumerate() if one.is_alive() and MODULE in home(one)]


def _settings() -> dict[str, Any]:
    import numpy as np
    import torch

    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (another's code may draw from it)
        "python": random.getstate(),
    }


def _set(settings: Mapping[str, Any]) -> None:
    import numpy as np
    import torch

    if torch.get_num_threads() != settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.set_default_dtype(settings["dtype"])
    torch.set_grad_enabled(settings["grad"])
    torch.set_float32_matmul_precision(settings["precision"])
    torch.use_deterministic_algorithms(settings["deterministic"])
    torch.set_rng_state(settings["torch"])
    np.random.set_state(settings["numpy"])  # noqa: NPY002
    random.setstate(settings["python"])


def _sums(shared: Iterator[tuple[str, Any]]) -> dict[str, list[tuple[int, ...]]]:

    return {name: [checksums(tensor) for tensor in _tensors(thing, 4)] for name, thing in shared}


def _tensors(thing: Any, deep: int) -> Iterator[Tensor]:
    import torch

    if isinstance(thing, torch.Tensor):
        yield thing.detach()
    elif deep and isinstance(thing, Mapping):
        for value in thing.values():
            yield from _tensors(value, deep - 1)
    elif deep and isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _tensors(value, deep - 1)
    elif deep and hasattr(thing, "__dict__") and not isinstance(thing, (type, torch.nn.Module)):
        yield from _tensors(vars(thing), deep - 1)


def _attributes(module: Any) -> dict[str, Any]:
    """Plain values that modules and the configuration hold: whether it trains, by what scores are scaled."""
    found = {
        f"{name}.{key}": value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, PLAIN) and value == value
    }
    return found | {f"config.{key}": repr(value) for key, value in vars(module.config).items()}


def _functions(module: Any) -> dict[tuple[Any, str], Any]:
    """Every function and class that cells run through, by who holds it."""
    ours = [one for name, one in list(sys.modules.items()) if name.split(".")[0] == "dualscope"]
    holders: list[Any] = [*ours, *(sys.modules[name] for name in LIBRARIES if name in sys.modules)]
    kinds = {base for part in module.modules() for base in type(part).__mro__}
    kinds |= {one for holder in ours for one in vars(holder).values() if isinstance(one, type)}
    holders += [kind for kind in kinds if kind.__module__.split(".")[0] in ("dualscope", "torch", "transformers")]
    return {
        (holder, name): value
        for holder in holders
        for name, value in list(vars(holder).items())
        if _is_code(value) and not name.startswith("__")
    }


def _is_code(value: Any) -> bool:
    return isinstance(value, (Callable, property, staticmethod, classmethod))  # type: ignore[arg-type]


def _patched(before: Mapping[tuple[Any, str], Any]) -> str | None:
    """Put replaced functions back; the name of one, if there was any."""
    found = None
    for (holder, name), value in before.items():
        if vars(holder).get(name) is not value:
            setattr(holder, name, value)
            found = f"{getattr(holder, '__name__', holder)}.{name}"
    return found


# Tells whether a plugin's code has changed a model's weights, hooks or methods.


CHUNK = 2**22  # numbers that are summed at a time
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class ModelFingerprint:
    """A module's weights by two checksums each, and how many hooks and replaced methods it has.

    >>> layer = nn.Linear(2, 2)
    >>> fingerprint = ModelFingerprint.of(layer)
    >>> fingerprint.broken(layer) is None
    True
    >>> layer.weight.data[0, 0] += 1  # which no version counter would tell
    >>> fingerprint.broken(layer)
    "the weight 'weight'"
    """

    sums: dict[str, tuple[int, ...]]
    hooks: int

    @classmethod
    def of(cls, module: nn.Module) -> ModelFingerprint:
        sums = {name: checksums(weight.detach()) for name, weight in module.named_parameters()}
        parts = list(module.modules())
        hooks = sum(len(getattr(part, kind)) for part in parts for kind in HOOKS)
        return cls(sums, hooks + sum("forward" in vars(part) for part in parts))

    def broken(self, module: nn.Module) -> str | None:
        """What is not as it was, in words; None where everything is."""
        now = ModelFingerprint.of(module)
        for name in {**self.sums, **now.sums}:
            if self.sums.get(name) != now.sums.get(name):
                return f"the weight '{name}'"
        return None if self.hooks == now.hooks else "its hooks or methods"


@torch.no_grad()
def checksums(weight: Tensor) -> tuple[int, ...]:
    """Sums of the numbers' bits, plain and weighted by place: an exchange of two numbers changes the second."""
    bits = (
        (weight.view(torch.uint8) if weight.dtype == torch.bool else weight)
        .contiguous()
        .view(-1)
        .view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()])
    )
    ramp = torch.arange(1, min(CHUNK, bits.numel()) + 1, device=weight.device)
    found = [torch.tensor(bits.numel(), device=weight.device)]
    for chunk in bits.split(CHUNK):
        wide = chunk.long()
        found += [wide.sum(), (wide * ramp[: len(wide)]).sum()]
    return tuple(torch.stack(found).tolist())
