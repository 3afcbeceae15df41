"""The device a model runs on, by name."""

import os

import torch

from dualscope.core.errors import InputError


def resolve(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA where there is one, then MPS, then the CPU.

    >>> resolve("cpu")
    device(type='cpu')
    >>> resolve("gpu")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: unknown device 'gpu': use auto, cpu, cuda, cuda:N or mps
    """
    if name == "auto":
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"unknown device '{name}': use auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device '{name}': this machine has {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps': Metal is not available on this machine")
    if device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device '{name}': use auto, cpu, cuda, cuda:N or mps")
    return device


def resolve_all(name: str) -> list[torch.device]:
    """One device, or several, over which a model's layers are split in this order.

    >>> resolve_all("cpu")
    [device(type='cpu')]
    >>> resolve_all("cpu,cpu")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: device 'cpu,cpu': each device is named once
    """
    found = [resolve(part.strip()) for part in name.split(",")]
    if len(set(found)) < len(found):
        raise InputError(f"device '{name}': each device is named once")
    return found


def total_memory(device: torch.device) -> int:
    """Bytes of memory that the device has in all, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
