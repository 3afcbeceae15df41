"""Settings that a person chooses by name: typed, frozen, unknown names refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


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
            if (
                numbers
                and any(isinstance(item, bool) for item in found)
                and not _takes(field.annotation, bool)
            ):
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
