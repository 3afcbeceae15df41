"""What a study comes to: its cells, and what has to be chosen before they can be computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualscope.core.errors import InputError
from dualscope.core.spec import CellSpec, EpisodeSpec, LearnerSpec
from dualscope.studies.choices import ChoiceJob
from dualscope.studies.resolve import LearnerFacts


@dataclass(frozen=True)
class PlannedLearner:
    """A learner that a study asks for on a task, at one rate, and what it is compared with."""

    facts: LearnerFacts
    learning: LearnerSpec
    reference: LearnerSpec
    other_task: tuple[str, str] | None = None
    chosen: tuple[str, str, str] | None = None  # its name, the options that it was given, what was chosen


@dataclass
class Plan:
    """A study's cells, in the order in which they are best computed, and the choices they still wait for."""

    cells: list[CellSpec] = field(default_factory=list)
    choices: list[ChoiceJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: list[CellSpec] = field(default_factory=list)  # the cells of all shards

    def episodes(self) -> dict[EpisodeSpec, list[CellSpec]]:
        """The cells by what they share, models first: a model's episodes follow one another."""
        groups: dict[EpisodeSpec, list[CellSpec]] = {}
        for cell in self.cells:
            groups.setdefault(cell.episode, []).append(cell)
        return groups


def parse_shard(text: str) -> tuple[int, int]:
    """``2/8``: the second of eight parts.

    >>> parse_shard("2/8")
    (2, 8)
    """
    number, _, shards = text.partition("/")
    plain = all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, shards))
    if not plain or not 1 <= int(number) <= int(shards):
        raise InputError(f"--shard {text}: expected i/n with 1 <= i <= n, for example 2/8")
    return int(number), int(shards)
