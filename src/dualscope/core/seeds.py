"""Seeds as people write them: a number of them, or the seeds themselves."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

MOST_SEEDS = 100_000


def as_seeds(value: Any) -> Any:
    """``3`` means 0, 1, 2; a list means exactly these; ``"2,3,4"`` is the command line's list.

    >>> as_seeds(3), as_seeds("2,3,4"), as_seeds("7,")
    ((0, 1, 2), ['2', '3', '4'], ['7'])
    """
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() for part in parts):
            raise ValueError(
                f"expected a number of seeds (3) or the seeds themselves (2,3,4), found {value!r}"
            )
        value = parts if "," in value else int(parts[0])
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_SEEDS:
            raise ValueError(f"a number of seeds is at least 1 and at most {MOST_SEEDS:,}, found {value}")
        return tuple(range(value))
    return value


Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what a column of rows can hold
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(as_seeds), Field(min_length=1)]
