"""One registry idea for learners, metrics, families, generators and engines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from dualscope.core.errors import InputError, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Names for things of one kind; an unknown name is an error that lists the known ones.

    Capitals are forgiven, with a warning.

    >>> greetings = Registry[str]("greeting")
    >>> greetings.add("hello", "Hello!", aliases=("hi",))
    'Hello!'
    >>> greetings["hi"]
    'Hello!'
    >>> greetings["helo"]
    Traceback (most recent call last):
    dualscope.core.errors.InputError: unknown greeting 'helo': did you mean hello? Known: hello.
    >>> greetings.remove("hello")
    >>> "hi" in greetings
    False
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._items: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def add(self, name: str, item: T, aliases: tuple[str, ...] = ()) -> T:
        if not name.isprintable() or name != name.strip() or not name:
            raise InputError(f"{name!r} is no name of a {self.noun}: it has to fit in one line of a table")
        if name in self._items or name in self._aliases:
            raise InputError(f"{self.noun} '{name}' is registered already; choose another name")
        self._items[name] = item
        self._aliases.update(dict.fromkeys(aliases, name))
        return item

    def remove(self, name: str) -> None:
        """Forget a name and its aliases: a notebook's cell that registers it can then be run again."""
        name = self.canonical(name)
        del self._items[name]
        self._aliases = {alias: of for alias, of in self._aliases.items() if of != name}

    def register(self, name: str, *aliases: str) -> Callable[[T], T]:
        """As a decorator: ``@LEARNERS.register("gd", "ft")``."""
        return lambda item: self.add(name, item, aliases)

    def canonical(self, name: str) -> str:
        """The name itself, an alias resolved; unknown names raise."""
        name = self._aliases.get(name, name)
        if name in self._items:
            return name
        if not isinstance(name, str):
            raise InputError(f"a {self.noun} is given by its name, found {type(name).__name__} {str(name)[:60]!r}")
        meant = [known for known in (*self._items, *self._aliases) if known.casefold() == name.strip().casefold()]
        if len(meant) != 1:
            raise InputError(f"unknown {self.noun} '{name}': {suggest(name, self._items)}")
        warnings.warn(f"'{name}': the {self.noun} is called '{meant[0]}', and was taken as that", stacklevel=3)
        return self._aliases.get(meant[0], meant[0])

    def arrange(self, rank: Callable[[T], int]) -> None:
        """Put the items in an order of their own, so that it does not tell which module was imported first."""
        self._items = dict(sorted(self._items.items(), key=lambda item: rank(item[1])))

    def __getitem__(self, name: str) -> T:
        return self._items[self.canonical(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


# What a learner says of itself for people, kept apart from its code: pages are made where the code is not.


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
