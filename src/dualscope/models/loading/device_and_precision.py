"""The device a model runs on, by name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dualscope.core.errors import InputError, suggest


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


# The precision a model computes in, by name.


DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,  # the weights are float32; only the products are rounded
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of the weights.

    >>> dtype_of("tf32")
    torch.float32
    >>> dtype_of("fp32")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: unknown dtype 'fp32': did you mean tf32 or float32? Known: bfloat16, float16, \
float32, float64, tf32.
    """
    if precision not in DTYPES:
        raise InputError(f"unknown dtype '{precision}': {suggest(precision, DTYPES)}")
    return DTYPES[precision]


def name_of(dtype: torch.dtype) -> str:
    """The precision of a module that was built elsewhere.

    >>> name_of(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """TF32 products inside, where ``precision`` is "tf32", and full ones where it is anything else.

    The switch is global in torch, so it is held only as long as a model runs. Full precision is set explicitly
    too: a program that had TF32 on must not change what a float32 model measures.

    >>> with matmuls("tf32"):
    ...     torch.get_float32_matmul_precision()
    'high'
    >>> torch.get_float32_matmul_precision()
    'highest'
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
