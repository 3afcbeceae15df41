"""Every learner on models whose layers pretend to live on two devices: prints what mixed them, as JSON.

    python -m tests.models.pretended gpt2 llama

The tensors have shapes, dtypes and devices but no numbers, and torch refuses an operation on two devices as a real one
would. One of the devices is made up, which torch allows once a process: so this is a process of its own.
"""

import gc
import json
import os
import sys
import traceback
from typing import Any

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from dualscope.learners import LEARNERS, Bench
from dualscope.models import Model
from dualscope.models.placement import split
from tests.learners.setting import tiny_lesson, tiny_task, wrapped

LR = 0.3
# They look at numbers, or carry derivatives forward: tensors without numbers cannot.
NEEDS_NUMBERS = ("lcgd-clipped", "gd-linearized")
WANT = frozenset({"exits", "mass", "kendall", "dual", "direct"})


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


def pretend(hf: nn.Module, places: dict[str, torch.device]) -> None:
    """Tensors without numbers on the devices that a model's parts would go to; tied ones stay tied."""
    made: dict[int, Tensor] = {}
    for path, module in hf.named_modules():
        device = next((d for name, d in places.items() if f"{path}.".startswith(f"{name}.")), None)
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for tensors in tables:
            for name, real in tensors.items():
                if real is not None:
                    assert device is not None, f"{path}.{name} has no device"
                    if id(real) not in made:
                        fake = torch.empty(real.shape, dtype=real.dtype, device=device)
                        made[id(real)] = nn.Parameter(fake) if isinstance(real, nn.Parameter) else fake
                    tensors[name] = made[id(real)]
    for path, device in places.items():
        add_hook_to_module(hf.get_submodule(path), Follow(device))
    add_hook_to_module(hf, Return(next(iter(places.values()))))


def lessons(model: Model) -> dict[str, Any]:
    second = tiny_task("second", ("Yes", "No"), seed=9, template="Question: {text} Answer:")
    return {"lesson": tiny_lesson(model), "other": tiny_lesson(model, task=second)}


def examine(family: str, learner: str, dtype: torch.dtype) -> str | None:
    """What went wrong, or None."""
    whole = wrapped(family, dtype)
    lesson = lessons(whole)
    devices = [torch.device("other:0"), torch.device("cpu")]
    with FakeTensorMode(allow_non_fake_inputs=False):
        pretend(whole.hf, split(whole.hf, devices))
        model = Model(whole.hf, whole.tokenizer)
        try:
            learned = Bench(model, want=WANT, **lesson).learned(learner, LR)
        except Exception:
            return traceback.format_exc()
    if learned.trace.attn_out.device != devices[0]:
        return f"the trace is on {learned.trace.attn_out.device}"
    where = {str(change.device) for change in (learned.delta or {}).values()}
    return None if where in (set(), {"other:0", "cpu"}) else f"the change is on {where}"


def main() -> None:
    backend_registration._setup_privateuseone_for_python_backend("other")
    plain = torch.tensor  # which knows no made-up device; and of numbers only the shape is needed
    torch.tensor = lambda data, device="cpu", **o: torch.empty_like(plain(data, **o), device=device)
    for name in (
        "dualscope.models.reading.memory",
        "dualscope.learners.bench",
    ):  # a made-up device has no memory
        vars(sys.modules[name])["total_memory"] = lambda device: 2**34
    found: dict[str, str | None] = {}
    for family in sys.argv[1:]:
        for learner in [name for name in LEARNERS if name not in NEEDS_NUMBERS]:
            for dtype in (torch.float32, torch.bfloat16):  # in place, and beside the weights
                if learner != "gd-all" or dtype == torch.float32:
                    found[f"{family} {learner} {dtype}"] = examine(family, learner, dtype)
            gc.collect()
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # torch's threads for a made-up device do not end by themselves


if __name__ == "__main__":
    main()
