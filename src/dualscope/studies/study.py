"""A study: the grid of cells that one command computes, as validated data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from dualscope.core.config_file import Location, read_yaml, validated
from dualscope.core.errors import InputError, suggest
from dualscope.core.options import Seed, Seeds, Strict, as_seeds, gathered
from dualscope.core.words import (
    CONTROL_ROLES,
    AdapterMode,
    AskedPrecision,
    Control,
    Corrupt,
    DemoLabels,
    GdDemonstrations,
    GdOrder,
    ReadAt,
    Variant,
)
from dualscope.studies.paths import all_matching, anchored

# Presets: studies that come with the package, a YAML file each.


PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """The presets by name, ``quick`` (the default) first."""
    return sorted((path.stem for path in PRESETS.glob("*.yaml")), key=lambda name: (name != "quick", name))


def read_preset(name: str) -> dict[str, Any]:
    """A preset's fields, less its ``about`` line."""
    if name not in preset_names():
        raise InputError(f"unknown preset '{name}': {suggest(name, preset_names())}")
    fields, _ = read_yaml(PRESETS / f"{name}.yaml")
    fields.pop("about", None)
    return fields


# The entries of a study: its tasks, learners and controls, and the kinds of lists that its fields take.


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
    """A learner of a study: its options, its control, rates of its own, its references, its variants.

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


MOST_CELLS = 500_000
LISTED = (
    "models", "variants", "seeds", "orders", "shots", "demo_labels", "tasks", "learners", "controls", "init_seeds",
    "interventions",
)  # fmt: skip


def _as_sources(value: Any) -> Any:
    """``null`` alone stands for the task itself."""
    return [value] if value is None else as_list(value)


class _ErrorsInWords(type(Strict)):  # type: ignore[misc]  # pydantic's own metaclass
    """A study that is built by a call says what is wrong in the same words as one that is read from a file."""

    def __call__(cls, **fields: Any) -> Any:
        try:
            return super().__call__(**fields)
        except ValidationError:
            validated(cls, fields, "study")  # says it in words
            raise


class Study(Strict, metaclass=_ErrorsInWords):
    """A grid: models x variants x tasks x seeds x orders x shots x learners x rates x demo labels.

    >>> attention = {"learner": "lcgd", "options": {"readout": "attention"}}
    >>> study = Study.build({"tasks": ["sst2"], "seeds": 2, "learners": ["gd", attention]})
    >>> study.seeds, study.learners[1].options
    ((0, 1), {'readout': 'attention'})
    >>> Study.build({"tasks": ["sst2"], "shot": 4})
    Traceback (most recent call last):
    dualscope.core.errors.InputError: study: unknown field 'shot' (found 4): did you mean shots...
    """

    models: Names = ("embedded",)  # embedded, folders, hub names (name@revision), and patterns of them
    adapter: Name | None = None
    """The folder of a LoRA adapter, for every model."""
    adapter_mode: AdapterMode = "merged"  # into the weights; active: a path of its own beside them
    variants: Variants = ("trained",)  # which weights: the trained ones, and kinds of untrained ones
    init_seeds: Annotated[tuple[Seed, ...] | None, BeforeValidator(as_seeds)] = None
    """Draws of an untrained variant's weights; by default the cell's seed."""
    tasks: Annotated[tuple[TaskEntry, ...], entries("task"), Field(min_length=1)]
    """Names of the catalog or task files, or entries with seeds and rates of their own."""
    seeds: Seeds = (0, 1, 2)  # how many (3 means 0, 1, 2), or a list of them: each draws other demonstrations
    orders: Literal["by-seed"] | Numbers = (0,)
    """Permutations of the demonstrations, 0 as drawn. ``by-seed``: a task's first seed as drawn, its second by the
    first permutation, and so on, as the published runs have it."""
    shots: Numbers = (32,)  # demonstrations asked for; how many fit is in the rows (shots_used)
    learners: Annotated[tuple[LearnerEntry, ...], entries("learner"), Field(min_length=1)] = (
        LearnerEntry(learner="gd"),
        LearnerEntry(learner="lcgd"),
    )
    """Names, or entries with options. Zero-shot and in-context are always computed."""
    controls: Annotated[tuple[ControlEntry, ...], entries("control")] = ()
    """What every learner under test faces, each as its own control."""
    interventions: Annotated[tuple[InterventionEntry, ...], entries("kind")] = ()
    """What the demonstrations say is changed in so many ways, and how learners respond is compared."""
    lr: Rates = "auto"
    """``auto``: that of plain gd, chosen per model and task; ``own``: chosen for each learner by itself; ``recorded``:
    the model card's, ``auto`` where it has none."""
    demo_labels: Annotated[tuple[DemoLabels, ...], BeforeValidator(as_list), Field(min_length=1)] = ("gold",)
    """What labels the demonstrations are shown with."""
    corrupt: Corrupt = "both"  # whose labels these are: both learners', or one's alone
    queries_from: Annotated[tuple[str | None, ...], BeforeValidator(_as_sources), Field(min_length=1)] = (None,)
    """Tasks that the queries are of, where the demonstrations' own is not meant (null): other texts or another template
    with the same classes."""
    balanced: bool = False  # as many demonstrations of every class
    queries: Annotated[int, Field(ge=1, lt=2**63)] = 2000  # at most this many of the evaluation split
    read_at: ReadAt = "prompt-end"
    """first-label: after the first class's label word, as the published code reads"""
    gd_demonstrations: GdDemonstrations = "same"  # what gradient learners see: what fits in the context, or all
    gd_order: GdOrder = "same"  # own: gradient learners see them in another order, as in the published code
    chat: bool = False
    """Demonstrations as turns of a conversation, through the chat template of each model's own tokenizer."""
    metrics: Annotated[Annotated[tuple[Name, ...], Field(min_length=1)] | None, BeforeValidator(as_list)] = None
    """Metrics by name; by default all that a cell has the material for."""
    subset: Literal["all", "f2t"] = "all"  # f2t: attention of the queries that both learners turn right
    per_head: bool = False  # also a row for every head
    per_query: bool = False  # also every query's value at every layer
    save_traces: bool = False  # keep every cell's tensors
    texts: bool = True
    """Keep what the queries say, once an episode's, so that the report can show it."""
    dtype: AskedPrecision = "auto"  # float64 for a small model on a CPU, else float32
    data: Name | None = None  # a folder that catalog tasks are read from: DIR/<task>/<split>.jsonl
    plugins: Annotated[tuple[Name, ...], BeforeValidator(as_list)] = ()  # files with learners and metrics

    @field_validator("shots")
    @classmethod
    def _some_shots(cls, shots: tuple[int, ...]) -> tuple[int, ...]:
        if min(shots) < 1:
            raise ValueError("at least 1 demonstration (zero-shot is a learner of its own)")
        return shots

    @field_validator(*LISTED)
    @classmethod
    def _no_repeats(cls, values: tuple[Any, ...] | str | None) -> tuple[Any, ...] | str | None:
        seen: set[str] = set()
        for value in () if isinstance(values, str) else values or ():  # by-seed is a word
            if (text := repr(value)) in seen:
                names = (getattr(value, kind, None) for kind in ("task", "learner", "control", "kind"))
                name = next(filter(None, names), value)
                raise ValueError(f"{name!r} is there twice")
            seen.add(text)
        return values

    @model_validator(mode="after")
    def _something_to_be_active(self) -> Study:
        if self.adapter_mode == "active" and self.adapter is None:
            raise ValueError("adapter_mode: active needs an adapter: name its folder (adapter, --adapter DIR)")
        return self

    @model_validator(mode="after")
    def _not_without_end(self) -> Study:
        draws = sum(len(entry.seeds or self.seeds) for entry in self.tasks) * len(self.init_seeds or (0,))
        sides = (self.models, self.variants, self.orders, self.shots, self.demo_labels)
        cells = draws * math.prod(map(len, sides)) * (len(self.learners) + 2)
        if cells > MOST_CELLS:
            raise ValueError(
                f"it asks for about {cells:,} cells, and a study has at most {MOST_CELLS:,}: make several of it, with "
                "fewer seeds, orders or rates each"
            )
        return self

    @classmethod
    def build(
        cls, fields: Mapping[str, Any], source: str = "study", lines: Mapping[Location, int] | None = None
    ) -> Study:
        """A study from plain data; what is wrong with it is an `InputError` that names the field."""
        return validated(cls, fields, source, lines)

    @classmethod
    def resolve(
        cls, options: Mapping[str, Any] | None = None, file: Path | str | None = None, preset: str | None = None
    ) -> Study:
        """Options over the study file over the preset (``quick`` where none is named).

        Paths in the file are looked for beside it, and else in the working folder.

        >>> Study.resolve({"seeds": "2,3"}, preset="revisited").tasks[0].seeds is None
        True
        """
        written, lines = read_yaml(Path(file)) if file is not None else ({}, {})
        if file is not None:
            folder = Path(file).parent
            models = {"models": all_matching(written["models"], folder)} if "models" in written else {}
            written = anchored({**written, **models}, folder)
        if options is not None and options.get("models"):
            options = {**options, "models": all_matching(options["models"])}
        named = written.pop("preset", None)
        if named is not None and not isinstance(named, str):
            raise InputError(f"{file}: preset: {named!r} is not a preset's name")
        preset = next((name for name in (preset, named) if name is not None), "quick")
        base = read_preset(preset)
        base = _overlay(base, written, keep_entries=False)
        source = str(file) if file is not None else f"preset {preset}"
        for field, value in (options or {}).items():  # each by itself: its error is not the file's
            cls.build({"tasks": ["any"], field: value}, "options")
        return cls.build(_overlay(base, dict(options or {}), keep_entries=True), source, lines)

    def dump(self) -> str:
        """The resolved study as YAML, which `resolve` reads back to the same study."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _overlay(base: dict[str, Any], over: dict[str, Any], keep_entries: bool) -> dict[str, Any]:
    """The upper layer's fields win. Seeds or rates given there also undo the lower layer's per-task ones.

    ``keep_entries``: naming a task or learner (``--task sst2``) picks the lower layer's entry of that name.
    """
    merged = {**base, **over}
    for field, key in (("tasks", "task"), ("learners", "learner"), ("interventions", "kind")):
        lower = [item for item in as_list(base.get(field) or []) if isinstance(item, Mapping)]
        if keep_entries and field in over:
            named = {item.get(key): item for item in reversed(lower)}
            merged[field] = [named.get(item, item) if isinstance(item, str) else item for item in as_list(over[field])]
        dropped = {name for name in ("seeds", "lr") if name in over}
        if dropped and field in merged and (field not in over or keep_entries):
            merged[field] = [
                {k: v for k, v in item.items() if k not in dropped} if isinstance(item, Mapping) else item
                for item in as_list(merged[field] or [])
            ]
    return merged
