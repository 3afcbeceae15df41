"""The spec: the frozen values that say what is measured, carried whole from the plan to the page. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from dualscope.core.canonical import canonical, fingerprint
from dualscope.core.words import (
    AdapterMode,
    Control,
    Corrupt,
    DemoLabels,
    Family,
    GdDemonstrations,
    GdOrder,
    Precision,
    ReadAt,
    Role,
    Subset,
    Variant,
)

if TYPE_CHECKING:
    from dualscope.core.rows import CellColumns

DEFINITIONS = 5
"""Raised when a definition changes so that stored numbers would no longer be what the code computes."""


CHECKPOINT = re.compile(r"(?:.*[-_])?(?:checkpoint|global_?step|step)[-_]?(\d{1,15})(?:[-_].*)?")
"""How trainings name their checkpoints' folders, and hubs their revisions: checkpoint-500, step1000."""
UNSEEN = ("adapter", "adapter_mode", "called")  # of a model: its name and the weights' hash know of them


def under_control(learner: str, control: str | None) -> str:
    """How a learner under a control is written. Names of learners and controls have no slash."""
    return learner if control is None else f"{learner}/{control}"


@lru_cache(maxsize=4096)  # a report asks for each of them a thousand times
def _label(name: str, control: str | None, options: str) -> str:
    inside = ",".join(f"{key}={value}" for key, value in sorted(json.loads(options).items()))
    return under_control(f"{name}[{inside}]" if inside else name, control)


@dataclass(frozen=True)
class LearnerSpec:
    """Who learns, under which control, with what options (canonical JSON of what differs from the defaults), how fast.

    >>> lcgd = LearnerSpec.of("lcgd", {"readout": "attention"}, lr=0.1)
    >>> lcgd.label, lcgd.under("random-labels").label
    ('lcgd[readout=attention]', 'lcgd[readout=attention]/random-labels')
    >>> lcgd.under("random-labels").written
    'lcgd/random-labels'
    """

    name: str
    control: Control | None = None
    options: str = "{}"
    lr: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        options: Mapping[str, Any] | None = None,
        control: Control | None = None,
        lr: float | None = None,
    ) -> LearnerSpec:
        return cls(name, control, canonical(dict(options or {})), lr)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(json.loads(self.options))

    @property
    def label(self) -> str:
        """What people read. Nothing is ever read back out of it."""
        return _label(self.name, self.control, self.options)

    @property
    def written(self) -> str:
        """The name that rows and the command line have: a learner under a control has one of its own."""
        return under_control(self.name, self.control)

    def under(self, control: Control | None) -> LearnerSpec:
        """The same learner under a control; None: as it is without one."""
        return replace(self, control=control)

    def is_reordered(self, other: LearnerSpec) -> bool:
        """Whether this is another learner from the same demonstrations in another order."""
        mine = {name: value for name, value in self.settings.items() if name != "draw"}
        return (self.name, self.control, self.lr, mine) == (other.name, "reorder", other.lr, other.settings)

    @property
    def facts(self) -> dict[str, Any]:
        """Plain data that `from_facts` reads back."""
        return {"learner": self.name, "control": self.control, "options": self.settings, "lr": self.lr}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> LearnerSpec:
        return cls.of(facts["learner"], facts["options"], facts["control"], facts["lr"])

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> LearnerSpec:
        """The learner that a row is of.

        >>> LearnerSpec.of_row({"learner": "lcgd/redraw", "control": "redraw", "lr": 0.1, "options": '{"draw":2}'})
        LearnerSpec(name='lcgd', control='redraw', options='{"draw":2}', lr=0.1)
        """
        control = row["control"]
        name = row["learner"] if control is None else row["learner"].removesuffix(f"/{control}")
        return cls(name, control, row["options"] or "{}", row.get("lr"))


ZERO_SHOT, IN_CONTEXT = LearnerSpec("zero-shot"), LearnerSpec("in-context")


PLAIN = "gd"


def companions(
    learning: LearnerSpec, role: Role, reference: LearnerSpec | None, others: Mapping[LearnerSpec, Role]
) -> tuple[LearnerSpec, ...]:
    """What a learner's metrics need beside it: the one rule, for plans and for comparisons.

    The contexts that teach nothing, plain GD of the same rate, the ceilings, the same learner in other orders, and
    ICL from other demonstrations, as far as they are among the others.

    Only of learners that are compared with in-context learning. A null beside a null answers no question, so contexts
    that teach nothing are for learners that are under test or have a rate.

    >>> others = {LearnerSpec("null-context"): "null", LearnerSpec("gd", lr=0.1): "hypothesis"}
    >>> [other.label for other in companions(LearnerSpec("lcgd", lr=0.1), "hypothesis", IN_CONTEXT, others)]
    ['null-context', 'gd']
    >>> companions(LearnerSpec("null-context"), "null", IN_CONTEXT, others)
    ()
    """
    if reference != IN_CONTEXT:
        return ()
    again = [other for other in others if other == IN_CONTEXT.under("redraw")]
    orders = [other for other in others if learning.control is None and other.is_reordered(learning)]
    if not (role == "hypothesis" or learning.lr is not None):
        return tuple(other for other in (*again, *orders) if other != learning)
    ceilings = [other for other, kind in others.items() if kind == "ceiling" and other.control is None]
    nulls = [other for other, kind in others.items() if kind == "null" and other.control is None]
    plain = LearnerSpec(PLAIN, lr=learning.lr)
    found = (*nulls, *([plain] if plain in others else []), *ceilings, *again, *orders)
    return tuple(other for other in found if other != learning)


def named_step(name: str) -> int | None:
    """The step in a checkpoint's name.

    >>> named_step("checkpoint-500"), named_step("stage1-step1000-tokens3B"), named_step("main")
    (500, 1000, None)
    """
    found = CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def adapted_name(model: str, folder: str, mode: AdapterMode) -> str:
    """What a model with an adapter is called.

    >>> adapted_name("gpt2", "adapters/mine/", "merged"), adapted_name("gpt2", "adapters/mine", "active")
    ('gpt2+mine', 'gpt2+mine (active)')
    """
    return f"{model}+{PurePath(folder).name}" + (" (active)" if mode == "active" else "")


@dataclass(frozen=True)
class ModelSpec:
    """A model as it is loaded: one `ModelSpec` is one load."""

    source: str
    """What it is loaded by: a name or a folder; a folder's path is not part of any id, its last part is."""
    weights: str
    variant: Variant = "trained"
    init_seed: int | None = None
    dtype: Precision = "float32"
    adapter: str | None = None
    """The folder of a LoRA adapter; the weights' hash knows of it, and of whether it is merged into them."""
    adapter_mode: AdapterMode = "merged"
    called: str | None = None
    """What rows call the model, where the study gives it a name."""

    @property
    def name(self) -> str:
        """What rows call the model: the name it was given, a hub name, ``embedded``, or a folder's or file's last part.

        >>> ModelSpec("/data/models/tiny/", "0").name, ModelSpec("owner/model@main", "0").name
        ('tiny', 'owner/model@main')
        >>> ModelSpec("embedded", "0", adapter="adapters/mine").name
        'embedded+mine'
        >>> ModelSpec("runs/mine/checkpoint-500", "0").name  # that alone would be any training's
        'mine/checkpoint-500'
        >>> ModelSpec("/data/models/checkpoint-1000", "0", called="mine").name
        'mine'
        >>> ModelSpec("/data/models/small.Q4_1.gguf", "0").name
        'small.Q4_1'
        """
        if self.called is not None:
            return self.called
        is_path = self.source.startswith((".", "~", "/")) or self.source.count("/") > 1
        *_, above, last = ("", *self.source.rstrip("/").split("/"))
        if is_path and named_step(last) is not None and above not in ("", ".", "..", "~"):
            last = f"{above}/{last}"
        own = last.removesuffix(".gguf") if is_path else self.source
        return own if self.adapter is None else adapted_name(own, self.adapter, self.adapter_mode)

    @property
    def facts(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in UNSEEN} | {"source": self.name}


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode before a model: everything that its learners share. It is what processes claim."""

    model: ModelSpec
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
    subset: Subset = "all"
    """Which queries metrics of attention are over."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> EpisodeSpec:
        """That of a row, or of what rows have in common, as far as columns tell; what is not said is as usual."""
        kept = {field.name for field in fields(cls)} - {"model", "queries_from"}
        own: dict[str, Any] = {name: row[name] for name in kept if row.get(name) is not None}
        of_model = {name: row[name] for name in ("variant", "init_seed", "dtype") if row.get(name) is not None}
        asked = row.get("queries_from")
        own |= {"model": ModelSpec(row["model"], "", **of_model, called=row["model"])}
        own |= {"queries_from": None if asked is None else (asked, "")}
        return cls(**{"task": "", "data": "", "seed": 0, **own})

    @property
    def facts(self) -> dict[str, Any]:
        # The data's hash knows of the chat.
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("model", "chat")}
        return {**own, "model": self.model.facts}

    @property
    def key(self) -> str:
        return fingerprint(self.facts)

    @property
    def columns(self) -> dict[str, Any]:
        """Of its rows, in the order of the files."""
        own = {**vars(self), **vars(self.model), "model": self.model.name}
        own["queries_from"] = None if self.queries_from is None else self.queries_from[0]
        return {name: own[name] for name in EPISODE_COLUMNS}

    @property
    def setting(self) -> EpisodeSpec:
        """What the cells of one verdict have in common: the model, how it is read, how demonstrations are shown.

        >>> EpisodeSpec(ModelSpec("tiny", "1f"), "sst2", "c0", seed=3, shots=16).setting.in_words
        '16 shots'
        """
        asked = None if self.queries_from is None else (self.queries_from[0], "")
        model = ModelSpec(self.model.name, "", dtype=self.model.dtype, called=self.model.name)
        return replace(self, model=model, task="", data="", seed=0, order=0, queries=0, queries_from=asked)

    @property
    def setting_columns(self) -> dict[str, Any]:
        """Plain data that `of_row` makes the setting of again."""
        own = ("variant", "init_seed", "task", "seed", "order")
        return {name: value for name, value in self.setting.columns.items() if name not in own}

    @property
    def reading(self) -> EpisodeSpec:
        """The setting whatever the demonstrations' number and labels: one model in one page's charts."""
        return replace(self.setting, shots=0, demo_labels="gold", corrupt="both", queries_from=None)

    def is_within(self, setting: EpisodeSpec, role: Role) -> bool:
        """Whether a learner of this episode is of a setting; zero-shot is of all in which it is asked the same."""
        if role == "baseline":
            return without_demonstrations(self.setting) == without_demonstrations(setting)
        return self.setting == setting

    @property
    def flipped(self) -> tuple[str, ...]:
        """Whose demonstrations have flipped labels: `icl`, `gd`."""
        if self.demo_labels != "flipped":
            return ()
        return ("icl", "gd") if self.corrupt == "both" else (self.corrupt,)

    @property
    def in_words(self) -> str:
        """The demonstrations, for people: ``16 shots, flipped labels``."""
        labels = "" if self.demo_labels == "gold" else f", {self.demo_labels} labels"
        asked = "" if self.queries_from is None else f", asked about {self.queries_from[0]}"
        return f"{self.shots} shots{labels}{asked}"

    @property
    def unusual(self) -> dict[str, Any]:
        """How the model is read and taught, as far as that is not as usual."""
        usual = EpisodeSpec(ModelSpec(self.model.name, ""), "", "", 0).reading.setting_columns
        return {name: value for name, value in self.reading.setting_columns.items() if value != usual[name]}


EPISODE_COLUMNS = (
    *("model", "variant", "init_seed", "dtype", "task", "seed", "order", "shots", "demo_labels", "corrupt", "balanced"),
    *("queries_from", "read_at", "chat", "gd_demonstrations", "gd_order", "subset"),
)


def without_demonstrations(spec: EpisodeSpec) -> EpisodeSpec:
    """What zero-shot is asked: the same for all shots, orders and labels, because it sees no demonstrations.

    Abstract labels stay: they are the queries' labels too.
    """
    unseen = ("shots", "order", "demo_labels", "corrupt", "balanced", "gd_demonstrations", "gd_order")
    plain: dict[str, Any] = {f.name: f.default for f in fields(spec) if f.name in unseen} | {"shots": 0}
    if spec.demo_labels == "abstract":
        plain["demo_labels"] = "abstract"
    return replace(spec, **plain)


@dataclass(frozen=True)
class InterventionSpec:
    """A change of what the demonstrations say, on how many draws."""

    kind: str
    draws: int


@dataclass(frozen=True)
class CellSpec:
    """A learner in an episode, and what is measured about it."""

    episode: EpisodeSpec
    learning: LearnerSpec
    role: Role
    reference: LearnerSpec | None = None
    """What the learner is compared with; None for zero-shot, which is where every change starts."""
    beside: tuple[LearnerSpec, ...] = ()
    """Other learners that its metrics need: null contexts, the other gradient learner of ``alpha``."""
    metrics: tuple[str, ...] | None = None
    per_head: bool = False
    per_query: bool = False
    code: str = ""
    """The hash of the plugins' code where a plugin defines one of the learners or metrics."""
    other_task: tuple[str, str] | None = None
    """Name and data hash of the task that a learner here is taught from on purpose."""
    family: Family | None = None
    intervention: InterventionSpec | None = None
    """What is changed from draw to draw, where the cell is about the learner's response."""
    plants: tuple[tuple[str, LearnerSpec], ...] = ()
    """What a response is compared with besides in-context learning's: the name in rows, and who is planted."""
    chosen: tuple[tuple[str, str, str], ...] = ()
    """Of every learner here that leaves settings open: its name, its options, and what was chosen (both JSON)."""

    @property
    def id(self) -> str:
        """A hash of all that determines the cell's numbers, never of where they are computed."""
        return fingerprint([DEFINITIONS, self.episode.facts, self.facts])

    @property
    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "episode": None}

    @classmethod
    def of_row(cls, row: Mapping[str, Any], reference: str | None = None) -> CellSpec:
        """That of a row, as far as columns tell; ``reference`` is the label of what the cell is compared with."""
        kind = row.get("intervention")
        return cls(
            EpisodeSpec.of_row(row),
            LearnerSpec.of_row(row),
            row["role"],
            None if reference is None else LearnerSpec(reference),
            family=row.get("family"),
            intervention=None if kind is None else InterventionSpec(kind, 0),
        )

    @property
    def is_response(self) -> bool:
        """Whether it is about a learner's response to an intervention, and not about the change as a whole."""
        return self.intervention is not None

    def is_within(self, setting: EpisodeSpec) -> bool:
        return self.episode.is_within(setting, self.role)

    def columns(self, shots_used: int | None = None) -> CellColumns:
        """The columns that say which cell a row belongs to."""
        found = {
            **self.episode.columns,
            "shots_used": 0 if self.role == "baseline" else shots_used,
            "learner": self.learning.written,
            "control": self.learning.control,
            "role": self.role,
            "family": self.family,
            "lr": self.learning.lr,
            "options": self.learning.options,
            "intervention": None if self.intervention is None else self.intervention.kind,
        }
        return cast("CellColumns", found)

    def __str__(self) -> str:
        episode, lr = self.episode, "" if self.learning.lr is None else f" lr {self.learning.lr:g}"
        init = "" if episode.model.init_seed is None else f" (init {episode.model.init_seed})"
        labels = "" if episode.demo_labels == "gold" else f" {episode.demo_labels} labels"
        order = f", order {episode.order}" if episode.order else ""
        response = "" if self.intervention is None else f" · {self.intervention.kind}"
        labels += "" if episode.queries_from is None else f", asked about {episode.queries_from[0]}"
        return (
            f"{episode.model.name} {episode.model.variant}{init} · {episode.task}, seed {episode.seed}{order}, "
            f"{episode.shots} shots{labels} · {self.learning.label}{lr}{response}"
        )
