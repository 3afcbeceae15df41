"""What a learner says of itself for people, kept apart from its code: pages are made where the code is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Colour = Literal["@green", "@grey", "@blue", "@vermilion", "@orange", "@purple", "@sky", "@navy", "@olive"]
"""A colour is a name; the page's style sheet has it twice, for light and for dark."""
Mark = Literal["circle", "square", "triangle-up", "diamond", "star", "hexagon", "cross"]
COLOURS: tuple[Colour, ...] = get_args(Colour)
MARKS: tuple[Mark, ...] = get_args(Mark)


@dataclass(frozen=True)
class Description:
    """A learner's title, how it is drawn, and what it decides."""

    title: str
    colour: Colour | None = None
    """None: one of those that no learner has of its own."""
    mark: Mark | None = None
    decides: str | None = None
    """Of a null that holds no demonstration: what it takes away, in a word. It decides whether or not it learned."""
    ranked: bool = True
    """Whether it stands beside other ceilings; an identity of every model does not."""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Description:
        """As it is kept in a run folder, which another person may have written."""
        colour, mark, decides = (facts.get(name) for name in ("colour", "mark", "decides"))
        return cls(
            str(facts.get("title")),
            colour if colour in COLOURS else None,
            mark if mark in MARKS else None,
            None if decides is None else str(decides),
            facts.get("ranked") is not False,
        )


ELSEWHERE: dict[str, Description] = {}
"""Learners whose code is not here (of a plugin), as runs that were opened describe them."""
