"""Plain data with one spelling, and short hashes of it."""

from __future__ import annotations

import hashlib
import json

from dualscope.core.errors import InputError


def canonical(value: object) -> str:
    """JSON with one spelling: sorted keys, no spaces.

    >>> canonical({"b": 1, "a": [1.0, "x"]})
    '{"a":[1.0,"x"],"b":1}'
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:  # not finite, a date, a list within itself, thousands of digits
        raise InputError(
            f"{repr(value)[:80]}: a setting is a plain number, text, list or truth value ({error})"
        ) from None


def fingerprint(value: object) -> str:
    """Twenty hexadecimal digits that stand for a piece of plain data."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:20]
