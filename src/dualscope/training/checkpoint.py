"""Checkpoints of a training run: whole or not there at all, also after Ctrl-C, and without pickle."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from dualscope.core.errors import InputError
from dualscope.core.folder import open_regular
from dualscope.core.untrusted_files import text_of

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_STATE: dict[str, type | tuple[type, ...]] = {"step": int, "seconds": (int, float), "log": list, "settings": dict}


def _damaged(folder: Path, why: object) -> InputError:
    return InputError(f"{folder}: not a whole checkpoint ({why}); delete it to start again")


def _names(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())  # a tied weight is named once


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write aside, then rename: a process that is killed here leaves the old checkpoint or the new one."""
    aside, old = folder.with_suffix(".new"), folder.with_suffix(".old")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    parameters = _names(model)
    save_file({name: p.detach().cpu().contiguous() for name, p in parameters.items()}, aside / "weights.safetensors")
    moments = {
        f"{name}/{moment}": torch.as_tensor(value).cpu().contiguous()
        for name, p in parameters.items()
        if p in optimizer.state
        for moment, value in optimizer.state[p].items()
    }
    save_file(moments, aside / "optimizer.safetensors")
    (aside / "state.json").write_text(json.dumps(state, indent=1))
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(aside, folder)
    shutil.rmtree(old, ignore_errors=True)


def load_state(folder: Path) -> dict[str, Any] | None:
    """The state that was saved beside the weights; None where there is no checkpoint."""
    old = folder.with_suffix(".old")
    if not folder.exists() and old.exists():
        os.rename(old, folder)  # killed between the two renames
    if not folder.exists():
        return None
    try:
        state: dict[str, Any] = json.loads(text_of(folder / "state.json"))
    except (InputError, ValueError) as error:
        raise _damaged(folder, f"state.json: {error}") from None
    for name, kind in _STATE.items():
        if not isinstance(state, dict) or not isinstance(state.get(name), kind):
            raise _damaged(folder, f"state.json has no {name}")
    return state


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Weights and optimizer as they were saved."""
    try:
        _load(folder, model, optimizer)
    except KeyError as error:
        raise _damaged(folder, f"{error} is missing") from None
    except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: a tensor of another shape
        raise _damaged(folder, error) from None


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for name in ("weights", "optimizer"):
        open_regular(folder / f"{name}.safetensors").close()  # a pipe would be waited for
    weights, moments = load_file(folder / "weights.safetensors"), load_file(folder / "optimizer.safetensors")
    with torch.no_grad():
        for name, parameter in _names(model).items():
            parameter.copy_(weights[name])
            if f"{name}/step" in moments:
                optimizer.state[parameter] = {
                    # the step counter stays where the optimizer keeps it: on the CPU unless fused
                    moment: moments[f"{name}/{moment}"].to(
                        parameter.device if moment != "step" or optimizer.defaults.get("fused") else "cpu"
                    )
                    for moment in dict.fromkeys((*_MOMENTS, *_moments_of(name, moments)))
                }


def _moments_of(name: str, moments: Iterable[str]) -> list[str]:
    """What an optimizer keeps of a weight beside Adam's moments, too."""
    return [key.removeprefix(f"{name}/") for key in moments if key.startswith(f"{name}/")]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of this: half an update must not become a checkpoint."""
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def ignore_interrupts(_: int) -> None:
    """In a worker process: Ctrl-C reaches it too, and the loop ends it in its own time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
