"""A tracker's own client: imported when it is asked for, with nothing set that would send anything anywhere."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dualscope.core.errors import InputError
from dualscope.core.untrusted_files import reason


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
