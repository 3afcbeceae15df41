"""The precision that suits a model where none is asked for. No torch: plans are made without it."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

from dualscope.core.errors import InputError
from dualscope.core.words import Precision
from dualscope.models.loading.gguf_file import read_header
from dualscope.models.loading.source import find, weights_header

SMALL = 40_000_000
"""Weights. Up to here float64 takes less than twice float32's time on a CPU: whole cells 0.9 to 1.4 times as long at 3
million weights and 1.2 to 1.5 at 21 million (float32 trains twice, to see its own rounding); reading alone 1.8 at 37
million, 2.0 at 64 million."""


def automatic_dtype(model: str, device: str = "auto", offline: bool = True) -> Precision:
    """float64 for a small model on a CPU, where it costs little and rounding hides no change; else float32.

    >>> automatic_dtype("embedded", "cpu"), automatic_dtype("embedded", "cuda")
    ('float64', 'float32')
    """
    return "float64" if on_cpu(device) and _weights(model, offline) <= SMALL else "float32"


def on_cpu(device: str) -> bool:
    """Whether a device of this name is the CPU, on this machine."""
    return device == "cpu" or (device == "auto" and not has_accelerator())


def has_accelerator() -> bool:
    return sys.platform == "darwin" or any(Path("/dev").glob("nvidia[0-9]*"))


def _weights(model: str, offline: bool) -> float:
    """How many a model has; infinitely many where its files are not here to be looked at."""
    try:
        source = find(model, offline)
        if source.gguf is not None:
            return read_header(source.gguf).parameters
        files = source.weights()
    except InputError:
        return float("inf")
    return sum(prod(shape) for shape, _ in weights_header(files, model).values())
