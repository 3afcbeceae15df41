"""Settings that a person chooses by name: typed, frozen, unknown names refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """A learner's own settings.

    >>> Options(lr=1)
    Traceback (most recent call last):
    pydantic_core._pydantic_core.ValidationError: 1 validation error for Options...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def changed(self) -> dict[str, object]:
        """The settings that differ from their defaults, ready for JSON.

        >>> Options().changed()
        {}
        """
        return self.model_dump(mode="json", exclude_defaults=True)
