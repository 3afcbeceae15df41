"""The precision a model computes in, by name."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dualscope.core.errors import InputError, suggest

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
