"""Numbers of a configuration that would give another model without a word, or none: refused before it is built."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dualscope.core.errors import InputError

LARGEST_EPSILON = 1.0


def check_numbers(config: Mapping[str, Any], file: object) -> None:
    """Norms' epsilons are small and not below 0; factors by which positions are scaled are above 0.

    >>> check_numbers({"layer_norm_epsilon": float("inf")}, "config.json")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: config.json: field 'layer_norm_epsilon' is inf; a number from 0 to 1 is expected
    """
    for name, value in _numbers(config, ""):
        last = name.rpartition(".")[2]
        if last.endswith(("epsilon", "_eps")) and not 0 <= value <= LARGEST_EPSILON:
            raise InputError(f"{file}: field '{name}' is {value}; a number from 0 to 1 is expected")
        if "rope" in name and last == "factor" and not 0 < value < math.inf:
            raise InputError(f"{file}: field '{name}' is {value}; a number above 0 is expected")


def _numbers(config: Mapping[str, Any], above: str) -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{above}{name}", value
