"""Settings that a person chooses by name: typed, frozen, unknown names refused; and seeds as people write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MOST_SEEDS = 100_000
MOST_EPOCHS = 1_000_000


class Strict(BaseModel):
    """Frozen, unknown fields refused, and no truth value taken for a number.

    >>> class Point(Strict):
    ...     x: int = 0
    >>> Point(x=True)
    Traceback (most recent call last):
    pydantic_core._pydantic_core.ValidationError: 1 validation error for Point...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        for name, field in cls.model_fields.items():
            value = data.get(name) if isinstance(data, dict) else None
            found = [value, *(value if isinstance(value, (list, tuple)) else ())]
            numbers = _takes(field.annotation, int) or _takes(field.annotation, float)
            if numbers and any(isinstance(item, bool) for item in found) and not _takes(field.annotation, bool):
                raise ValueError(f"{name}: expected a number, found {value!r}")
        return data


def _takes(annotation: Any, kind: type) -> bool:
    """Whether a field's type has a place for this kind, at whatever depth."""
    if annotation in (kind, Any):
        return True
    if isinstance(annotation, UnionType) or get_origin(annotation) in (Union, tuple, list, Annotated):
        return any(_takes(part, kind) for part in get_args(annotation))
    return False


class Options(Strict):
    """A learner's own settings.

    >>> Options(lr=1)
    Traceback (most recent call last):
    pydantic_core._pydantic_core.ValidationError: 1 validation error for Options...
    """

    def changed(self) -> dict[str, object]:
        """The settings that differ from their defaults, ready for JSON.

        >>> Options().changed()
        {}
        """
        return self.model_dump(mode="json", exclude_defaults=True)


def gathered(entry: Any, own: Collection[str]) -> Any:
    """An entry whose options may stand beside its own fields, as people write ``{learner: gd, epochs: 3}``.

    What is nearly the name of a field stays where it is, to be told so.

    >>> gathered({"learner": "gd", "epochs": 3}, ("learner", "options", "variants"))
    {'learner': 'gd', 'options': {'epochs': 3}}
    >>> gathered({"learner": "gd", "variant": "trained"}, ("learner", "options", "variants"))
    {'learner': 'gd', 'variant': 'trained'}
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("options", {}), Mapping):
        return entry
    beside = {
        name: value
        for name, value in entry.items()
        if isinstance(name, str) and name not in own and not get_close_matches(name, own, cutoff=0.8)
    }
    if not beside:
        return entry
    rest = {name: value for name, value in entry.items() if name not in beside}
    return {**rest, "options": {**entry.get("options", {}), **beside}}


def as_seeds(value: Any) -> Any:
    """``3`` means 0, 1, 2; a list means exactly these; ``"2,3,4"`` is the command line's list.

    >>> as_seeds(3), as_seeds("2,3,4"), as_seeds("7,")
    ((0, 1, 2), ['2', '3', '4'], ['7'])
    """
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() for part in parts):
            raise ValueError(f"expected a number of seeds (3) or the seeds themselves (2,3,4), found {value!r}")
        value = parts if "," in value else int(parts[0])
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_SEEDS:
            raise ValueError(f"a number of seeds is at least 1 and at most {MOST_SEEDS:,}, found {value}")
        return tuple(range(value))
    return value


Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what a column of rows can hold
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(as_seeds), Field(min_length=1)]
