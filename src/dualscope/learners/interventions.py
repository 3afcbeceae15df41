"""Interventions: a change of what the demonstrations say and of nothing else, as a family of seeded draws.

Inputs, their number and the length of the context stay the same in every draw, so what a context does whatever its
labels say is the same too, and cancels when the draws are compared with each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dualscope.core.errors import InputError
from dualscope.core.registry import Registry
from dualscope.core.words import Level
from dualscope.learners.altered_lessons import reordered, with_labels, with_labels_of_places
from dualscope.tasks.relabelling import JUDGED_STREAM, SPARE_STREAM, relabellings

if TYPE_CHECKING:
    from dualscope.tasks.lesson import Lesson

FEWEST_A_LEVEL = 4


@dataclass(frozen=True)
class LessonDraw:
    """One changed lesson. Draws of one level are exchangeable; an intervention without levels has the level None."""

    index: int
    lesson: Lesson
    level: Level | None = None
    changed: int = 0
    """How many demonstrations have another label than they were given."""

    @property
    def name(self) -> str:
        return f"draw {self.index}" + (f" ({self.level})" if self.level else "")


class Intervention(ABC):
    """A family of changes. Subclasses are registered by name; a plugin's work like the built-in ones.

    >>> from dualscope import INTERVENTIONS, Intervention
    >>> issubclass(INTERVENTIONS["relabel"], Intervention)
    True
    """

    name: ClassVar[str] = ""  # set by the registry

    @abstractmethod
    def draws(self, lesson: Lesson, count: int) -> list[LessonDraw]:
        """The changed lessons. What of the demonstrations fits into the context was decided for the lesson itself.

        Raises:
            InputError: The lesson does not allow so many different draws; the message says what would help.
        """


class _Interventions(Registry[type[Intervention]]):
    """Interventions know their own name, because rows speak of it."""

    def add(self, name: str, item: type[Intervention], aliases: tuple[str, ...] = ()) -> type[Intervention]:
        super().add(name, item, aliases)
        item.name = name
        return item


INTERVENTIONS = _Interventions("intervention")
"""Every intervention by its name; ``INTERVENTIONS.register`` adds one.

>>> from dualscope import INTERVENTIONS
>>> sorted(INTERVENTIONS)
['flip-one', 'relabel', 'reorder']
"""


@INTERVENTIONS.register("relabel")
class Relabel(Intervention):
    """The labels permuted among the demonstrations, at two levels of how many differ; what the verdict uses."""

    stream: ClassVar[int] = JUDGED_STREAM

    def draws(self, lesson: Lesson, count: int) -> list[LessonDraw]:
        given, episode = [one.label_index for one in lesson.demonstrations], lesson.episode
        try:
            found = relabellings(given, count, episode.seed, self.stream)
        except InputError as error:
            raise InputError(f"task '{episode.task.name}', seed {episode.seed}: {error}") from None
        return [
            LessonDraw(
                index,
                with_labels_of_places(lesson, places),
                level,
                sum(given[place] != label for place, label in zip(places, given, strict=True)),
            )
            for index, (level, places) in enumerate(found)
        ]


class SpareRelabel(Relabel):
    """Relabellings drawn apart from the verdict's: what a setting may be chosen on.

    Few demonstrations allow few relabellings, so some of them may be the verdict's too; its queries never are.
    """

    stream = SPARE_STREAM


@INTERVENTIONS.register("flip-one")
class FlipOne(Intervention):
    """One demonstration after the other gets the next class: what did each of them teach?"""

    def draws(self, lesson: Lesson, count: int) -> list[LessonDraw]:
        """One draw a demonstration, whatever ``count`` says."""
        classes = len(lesson.answers)
        draws = []
        for flipped in range(lesson.shots_used):
            labels = [(one.label_index + (i == flipped)) % classes for i, one in enumerate(lesson.demonstrations)]
            draws.append(LessonDraw(flipped, with_labels(lesson, labels), changed=1))
        return draws


@INTERVENTIONS.register("reorder")
class ReorderDraws(Intervention):
    """The demonstrations in other orders, each with the label it has."""

    def draws(self, lesson: Lesson, count: int) -> list[LessonDraw]:
        return [LessonDraw(index, reordered(lesson, index + 1)) for index in range(count)]
