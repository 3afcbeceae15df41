"""Environment variables that hold for a while: what is imported or started inside reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, these variables are so; None takes one away. Afterwards they are as before.

    >>> with environment({"DUALSCOPE_EXAMPLE": "1"}):
    ...     os.environ["DUALSCOPE_EXAMPLE"]
    '1'
    >>> "DUALSCOPE_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
