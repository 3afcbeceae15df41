"""A cell: one point of a study, and the name under which its rows are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from dualscope.core.canonical import canonical, fingerprint
from dualscope.core.learning import Learning
from dualscope.core.rows import CellColumns
from dualscope.core.words import (
    AdapterMode,
    Corrupt,
    DemoLabels,
    Family,
    GdDemonstrations,
    GdOrder,
    Precision,
    ReadAt,
    Role,
    Variant,
)
from dualscope.models.files.adapter import adapted_name
from dualscope.models.files.lineage import named_step

if TYPE_CHECKING:
    from dualscope.tasks import Episode, Task

DEFINITIONS = 5
"""Raised when a definition changes so that stored numbers would no longer be what the code computes."""


UNSEEN = ("adapter", "adapter_mode", "called")  # of a place: its name and the weights' hash know of them


@dataclass(frozen=True)
class Place:
    """A model as it is loaded: one `Place` is one load."""

    model: str
    """The name to load it by; a folder's path is not part of any id, its last part is."""
    weights: str
    variant: Variant = "trained"
    init_seed: int | None = None
    dtype: Precision = "float32"
    adapter: str | None = None
    """The folder of a LoRA adapter; the weights' hash knows of it, and of whether it is merged into them."""
    adapter_mode: AdapterMode = "merged"
    called: str | None = None
    """What rows are to call the model, where somebody named it."""

    @property
    def name(self) -> str:
        """What rows call the model: the name it was given, a hub name, ``embedded``, or a folder's or file's last part.

        >>> Place("/data/models/tiny/", "0").name, Place("owner/model@main", "0").name
        ('tiny', 'owner/model@main')
        >>> Place("embedded", "0", adapter="adapters/mine").name
        'embedded+mine'
        >>> Place("runs/mine/checkpoint-500", "0").name  # that alone would be any training's
        'mine/checkpoint-500'
        >>> Place("/data/models/checkpoint-1000", "0", called="mine").name
        'mine'
        >>> Place("/data/models/small.Q4_1.gguf", "0").name
        'small.Q4_1'
        """
        if self.called is not None:
            return self.called
        is_path = self.model.startswith((".", "~", "/")) or self.model.count("/") > 1
        *_, above, last = ("", *self.model.rstrip("/").split("/"))
        if is_path and named_step(last) is not None and above not in ("", ".", "..", "~"):
            last = f"{above}/{last}"
        own = last.removesuffix(".gguf") if is_path else self.model
        return own if self.adapter is None else adapted_name(own, self.adapter, self.adapter_mode)

    @property
    def facts(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in UNSEEN} | {"model": self.name}


@dataclass(frozen=True)
class Sitting:
    """An episode before a model: everything that its learners share. It is what processes claim."""

    place: Place
    task: str
    data: str
    """The hash of the task's examples, template, labels and separator, and of whether it is told in chat."""
    seed: int
    order: int = 0
    shots: int = 32
    demo_labels: DemoLabels = "gold"
    corrupt: Corrupt = "both"
    balanced: bool = False
    queries: int = 2000
    read_at: ReadAt = "prompt-end"
    gd_demonstrations: GdDemonstrations = "same"
    gd_order: GdOrder = "same"
    chat: bool = False
    queries_from: tuple[str, str] | None = None
    """Name and data hash of the task that the queries are of, where that is another one."""

    def draw(self, task: Task, asked: Task | None = None) -> Episode:
        """Its episode, with the queries of ``asked`` where that is another task.

        A sitting without demonstrations draws one, and never shows it.
        """
        from dualscope.tasks import Episode

        return Episode.draw(
            task,
            shots=max(self.shots, 1),
            seed=self.seed,
            queries=self.queries,
            order=self.order,
            balanced=self.balanced,
            demo_labels=self.demo_labels,
            corrupt=self.corrupt,
            queries_from=asked,
        )

    @property
    def facts(self) -> dict[str, Any]:
        # The data's hash knows of the chat.
        own = {name: value for name, value in _own(self).items() if name != "chat"}
        return {**own, "place": self.place.facts}

    @property
    def key(self) -> str:
        return fingerprint(self.facts)

    def without_demonstrations(self) -> Sitting:
        """Where zero-shot sits: one place for all shots, orders and labels, because it sees none of them.

        Abstract labels are the queries' labels too.
        """
        labels: DemoLabels = "abstract" if self.demo_labels == "abstract" else "gold"
        return Sitting(
            self.place,
            self.task,
            self.data,
            self.seed,
            shots=0,
            demo_labels=labels,
            queries=self.queries,
            read_at=self.read_at,
            chat=self.chat,
            queries_from=self.queries_from,
        )


@dataclass(frozen=True)
class InterventionSpec:
    """A change of what the demonstrations say, on how many draws."""

    kind: str
    draws: int


@dataclass(frozen=True)
class Cell:
    """A learner in a sitting, and what is measured about it."""

    sitting: Sitting
    learning: Learning
    role: Role
    reference: Learning | None = None
    """What the learner is compared with; None for zero-shot, which is where every change starts."""
    beside: tuple[Learning, ...] = ()
    """Other learners that its metrics need: null contexts, the other gradient learner of ``alpha``."""
    metrics: tuple[str, ...] | None = None
    subset: Literal["all", "f2t"] = "all"
    per_head: bool = False
    per_query: bool = False
    code: str = ""
    """The hash of the plugins' code where a plugin defines one of the learners or metrics."""
    other_task: tuple[str, str] | None = None
    """Name and data hash of the task that a learner here is taught from on purpose."""
    family: Family | None = None
    intervention: InterventionSpec | None = None
    """What is changed from draw to draw, where the cell is about the learner's response."""
    plants: tuple[tuple[str, Learning], ...] = ()
    """What a response is compared with besides in-context learning's: the name in rows, and who is planted."""
    chosen: tuple[tuple[str, str, str], ...] = ()
    """Of every learner here that leaves settings open: its name, its options, and what was chosen (both JSON)."""

    @property
    def id(self) -> str:
        """A hash of all that determines the cell's numbers, never of where they are computed."""
        return fingerprint([DEFINITIONS, self.sitting.facts, self.facts])

    @property
    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "sitting": None}

    def columns(self, shots_used: int | None) -> CellColumns:
        """The columns that say which cell a row belongs to."""
        sitting, place = self.sitting, self.sitting.place
        unusual = {
            name: getattr(sitting, name)
            for name in ("balanced", "read_at", "gd_demonstrations", "gd_order", "chat")
            if getattr(sitting, name) != getattr(Sitting, name)
        }
        if place.dtype != Place.dtype:
            unusual["dtype"] = place.dtype
        if self.subset != Cell.subset:
            unusual["subset"] = self.subset
        return {
            "model": place.name,
            "variant": place.variant,
            "init_seed": place.init_seed,
            "task": sitting.task,
            "seed": sitting.seed,
            "order": sitting.order,
            "shots": sitting.shots,
            "shots_used": 0 if self.role == "baseline" else shots_used,
            "learner": self.learning.name,
            "control": self.learning.control,
            "role": self.role,
            "lr": self.learning.rate,
            "demo_labels": sitting.demo_labels,
            "corrupt": sitting.corrupt,
            "queries_from": None if sitting.queries_from is None else sitting.queries_from[0],
            "options": canonical({**unusual, **self.learning.settings}),
            "intervention": None if self.intervention is None else self.intervention.kind,
            "family": self.family,
        }

    def __str__(self) -> str:
        sitting, rate = self.sitting, "" if self.learning.rate is None else f" lr {self.learning.rate:g}"
        init = "" if sitting.place.init_seed is None else f" (init {sitting.place.init_seed})"
        labels = "" if sitting.demo_labels == "gold" else f" {sitting.demo_labels} labels"
        order = f" order {sitting.order}" if sitting.order else ""
        response = "" if self.intervention is None else f" · {self.intervention.kind}"
        labels += "" if sitting.queries_from is None else f", asked about {sitting.queries_from[0]}"
        return (
            f"{sitting.place.name} {sitting.place.variant}{init} · {sitting.task} seed {sitting.seed}{order} "
            f"{sitting.shots} shots{labels} · {self.learning.label}{rate}{response}"
        )


def _own(thing: Any) -> Mapping[str, Any]:
    """A dataclass's fields less the nested place."""
    return {field.name: getattr(thing, field.name) for field in fields(thing) if field.name != "place"}
