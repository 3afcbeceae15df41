"""One labelled text."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """A demonstration or a query: named texts and the index of the right label word.

    >>> Example(id="train:17", fields={"sentence": "a fine film"}, label=1).id
    'train:17'
    """

    id: str  # split and row, stable
    fields: Mapping[str, str]  # after the field mapping: the names that the template uses
    label: int  # index into the label words
