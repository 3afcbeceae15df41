"""A tracker's own client: imported when it is asked for, with nothing set that would send anything anywhere."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dualscope.core.errors import InputError
from dualscope.core.strangers import reason


def client(name: str) -> Any:
    """The module, or one sentence that says how to get it.

    >>> client("mlflowx")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: --to mlflowx needs its client: pip install 'dualscope[mlflowx]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != name:
            raise InputError(
                f"--to {name}: its client is installed, and lacks {error.name}: pip install 'dualscope[{name}]'"
            ) from None
        raise InputError(f"--to {name} needs its client: pip install 'dualscope[{name}]'") from None


@contextmanager
def said_by(name: str) -> Iterator[None]:
    """What a client complains about (a store of another version, a full disk) is told as its own words."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"--to {name}: its client says: {reason(error)}") from error


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, these variables are so; None takes one away. Clients read them when they are imported, and later."""
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
