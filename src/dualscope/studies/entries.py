"""The entries of a study: its tasks, learners and controls, and the kinds of lists that its fields take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dualscope.core.options import Seed, Seeds, Strict, gathered
from dualscope.core.words import CONTROL_ROLES, Control, Variant


def as_list(value: Any) -> Any:
    """A single thing stands for a list of one, as people write ``shots: 32``."""
    return [value] if isinstance(value, (str, int, float, Mapping)) else value


def as_rates(value: Any) -> Any:
    """Rates as numbers: a list, one, or the command line's ``"0.1,0.3"``."""
    if value is None or (isinstance(value, str) and value in ("auto", "recorded", "own")):
        return value
    parts = value.split(",") if isinstance(value, str) else value
    parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    try:
        rates = tuple(float(part) for part in parts if not isinstance(part, str) or part.strip())
    except (TypeError, ValueError):
        rates = ()
    numbers = rates and not any(isinstance(part, bool) for part in parts)
    if not numbers or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"expected auto, recorded, own, or rates above 0 such as 0.1,0.3; found {value!r}")
    return rates


Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], BeforeValidator(as_list), Field(min_length=1)]
Variants = Annotated[tuple[Variant, ...], BeforeValidator(as_list), Field(min_length=1)]
Numbers = Annotated[tuple[Seed, ...], BeforeValidator(as_list), Field(min_length=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rates = Annotated[
    Literal["auto", "recorded", "own"] | Annotated[tuple[Rate, ...], Field(min_length=1)], BeforeValidator(as_rates)
]


class TaskEntry(Strict):
    """A task of a study, with seeds and rates of its own where the study gives them."""

    task: Name  # a name of the catalog, or a task file
    seeds: Seeds | None = None  # in place of the study's
    lr: Rates | None = None  # in place of the study's


class LearnerEntry(Strict):
    """A learner of a study: its options, its control, rates of its own, what it is compared with, on which variants.

    A bare name stands for an entry; ``lcgd/random-labels`` for a learner under a control. Options may also stand beside
    the other fields: ``{learner: gd, epochs: 3}``.
    """

    learner: Name  # a registered name, or a plugin's
    control: Control | None = None  # the learner is run under it
    options: dict[str, Any] = Field(default_factory=dict)  # the learner's own settings, and the control's
    lr: Rates | None = None  # in place of the task's and the study's
    reference: Name = "in-context"  # the learner whose change this one's is compared with
    variants: Variants | None = None  # only these of the study's

    @model_validator(mode="before")
    @classmethod
    def _control_behind_a_slash(cls, data: Any) -> Any:
        named = data.get("learner") if isinstance(data, Mapping) else None
        if not isinstance(named, str) or "/" not in named:
            return data
        learner, control = (part.strip() for part in named.split("/", 1))
        if data.get("control", control) != control:
            raise ValueError(f"{named}: under two controls, {control} and {data['control']}")
        return {**data, "learner": learner, "control": control}


class ControlEntry(Strict):
    """A control that every learner under test faces; ``own``: compared with the learner itself, not with ICL."""

    control: Control  # what is done to the learner
    options: dict[str, Any] = Field(default_factory=dict)  # the control's own settings
    reference: Literal["in-context", "own"] | None = None  # by default own for redraw and reorder
    variants: Variants | None = None  # only these of the study's

    @property
    def against_itself(self) -> bool:
        """The same learner once more is compared with itself, unless the study says otherwise."""
        return self.reference == "own" or (self.reference is None and CONTROL_ROLES[self.control] == "ceiling")


class InterventionEntry(Strict):
    """An intervention of a study: every learner on the same seeded draws, and how their responses compare.

    A bare name stands for an entry. Demonstrations are drawn balanced, because few labels of one class leave little
    to change; that makes the response's episodes others than those of the papers' likeness.
    """

    kind: Name  # relabel, flip-one, reorder, or a plugin's
    draws: Annotated[int, Field(ge=1, le=1000)] = 12  # changed lessons an episode
    queries: Annotated[int, Field(ge=2, lt=2**63)] = 50  # at most this many, the first of the study's
    balanced: bool = True  # as many demonstrations of every class
    plants: bool | tuple[Name, ...] = True
    """Whether every hypothesis that changes the model is planted too; or the names of those that are."""
    perturbed: bool = False  # also plants at a third and three times the rate: what a wrong rate costs
    variants: Variants = ("trained",)  # of the study's


def entries(key: str) -> BeforeValidator:
    """A bare name in a list stands for an entry with nothing but that name."""

    def convert(value: Any) -> Any:
        items = as_list(value)
        if not isinstance(items, (list, tuple)):
            return items
        made = [{key: item} if isinstance(item, str) else item for item in items]
        return tuple(gathered(item, LearnerEntry.model_fields) if key == "learner" else item for item in made)

    return BeforeValidator(convert)
