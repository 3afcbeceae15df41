"""What a section speaks of: one model of one run, in the setting that most charts show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dualscope.core.rows import SummaryRow, learning_of, sitting_options
from dualscope.core.spec import LearnerSpec
from dualscope.core.words import VARIANTS
from dualscope.findings.stored import StoredCell
from dualscope.findings.summary import ALL_TASKS
from dualscope.report.charts.palette import Palette
from dualscope.report.source import Document, ReportedRun

FIRST = ("zero-shot", "in-context", "gd", "lcgd")
UNSEEN = ("balanced", "gd_demonstrations")
"""Options about demonstrations: zero-shot sees none, so its rows do not name them."""
OWN_REFERENCE = ("in-context", "zero-shot", None)


class LabelledRow(SummaryRow):
    """A row of a summary, and what its learner is called."""

    label: str


@dataclass(frozen=True)
class ChartSetting:
    """What the charts hold fixed where a study varies it."""

    shots: int | None
    demo_labels: str
    corrupt: str
    rates: dict[str, float | None]
    """By task."""
    several_rates: bool
    queries_from: str | None = None


class Subject:
    """A model in a run, with the options of its sittings (read position, precision) if they are unusual."""

    def __init__(
        self, source: ReportedRun, model: str, sitting: str, several_runs: bool, alone: bool = False
    ) -> None:
        self.source, self.model, self.sitting = source, model, sitting
        self._palette: Palette | None = None
        # A model that was read in one way only is told by its name: its precision is among the facts of the run.
        said = {k: v for k, v in json.loads(sitting).items() if not (alone and k == "dtype")}
        options = ", ".join(f"{key} {value}" for key, value in said.items())
        self.name = (
            (f"{source.name}: " if several_runs else "") + model + (f" ({options})" if options else "")
        )

    @cached_property
    def all_rows(self) -> list[LabelledRow]:
        """The summary's rows of this model and sitting, each with the learner's label."""
        return [
            {**row, "label": label_of(row)}
            for row in self.source.summary
            if row["model"] == self.model and self._sits_here(row)
        ]

    def _sits_here(self, columns: Mapping[str, Any]) -> bool:
        if columns["role"] != "baseline":
            return sitting_options(columns) == self.sitting
        here = {key: value for key, value in json.loads(self.sitting).items() if key not in UNSEEN}
        return _same_json(sitting_options(columns), json.dumps(here))

    @cached_property
    def setting(self) -> ChartSetting:
        rows = [row for row in self.all_rows if row["role"] != "baseline" and row["task"] != ALL_TASKS]
        labels = [row["demo_labels"] for row in rows]
        kept = "gold" if "gold" in labels or not labels else labels[0]
        rows = [row for row in rows if row["demo_labels"] == kept]
        asked = [row["queries_from"] for row in rows]
        about = None if None in asked or not asked else asked[0]
        rows = [row for row in rows if row["queries_from"] == about]
        shots = max((row["shots"] for row in rows), default=None)
        rows = [row for row in rows if row["shots"] == shots]
        several = False
        rates: dict[str, float | None] = {}
        for task in dict.fromkeys(row["task"] for row in rows):
            own = [row for row in rows if row["task"] == task and row["lr"] is not None]
            several |= any(
                len({r["lr"] for r in own if r["label"] == n}) > 1 for n in {r["label"] for r in own}
            )
            trained = [r for r in own if r["metric"] == "accuracy" and r["variant"] == "trained"]
            plain = [r for r in trained if r["label"] == "gd"] or trained or own
            best = max(plain, key=lambda r: (r["value"], -(r["lr"] or 0)), default=None)
            rates[task] = None if best is None else best["lr"]
        corrupt = next((row["corrupt"] for row in rows), "both")
        return ChartSetting(shots, kept, corrupt, rates, several, about)

    def in_setting(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a summary, or a cell's columns, is of the setting that most charts show."""
        fixed = self.setting
        if row["queries_from"] != fixed.queries_from:
            return False
        if row["role"] == "baseline":  # it sees no demonstrations, yet abstract labels are the queries' too
            return bool((row["demo_labels"] == "abstract") == (fixed.demo_labels == "abstract"))
        if (row["shots"], row["demo_labels"], row["corrupt"]) != (
            fixed.shots,
            fixed.demo_labels,
            fixed.corrupt,
        ):
            return False
        return (
            not fixed.several_rates
            or row["lr"] is None
            or row["lr"] == fixed.rates.get(row["task"], row["lr"])
        )

    @cached_property
    def rows(self) -> list[LabelledRow]:
        return [row for row in self.all_rows if self.in_setting(row)]

    @cached_property
    def _index(self) -> dict[tuple[Any, ...], LabelledRow]:
        found: dict[tuple[Any, ...], LabelledRow] = {}
        for row in self.rows:
            found[row["task"], row["variant"], row["label"], row["metric"], row["reference"]] = row
        return found

    def get(
        self,
        task: str,
        learner: str,
        metric: str,
        variant: str = "trained",
        references: Iterable[str | None] = OWN_REFERENCE,
    ) -> LabelledRow | None:
        """The summary's row, the first reference that has one."""
        for reference in references:
            row = self._index.get((task, variant, learner, metric, reference))
            if row is not None:
                return row
        return None

    @cached_property
    def cells(self) -> list[StoredCell]:
        """The cells of the setting."""
        return [
            cell
            for cell in self.source.cells
            if cell.columns["model"] == self.model
            and self._sits_here(cell.columns)
            and self.in_setting(cell.columns)
        ]

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row["task"] for row in self.all_rows if row["task"] != ALL_TASKS))

    @cached_property
    def variants(self) -> list[str]:
        return [name for name in VARIANTS if any(row["variant"] == name for row in self.all_rows)]

    @cached_property
    def learners(self) -> list[str]:
        """Every learner's label, those that everybody knows first."""
        names = dict.fromkeys(row["label"] for row in self.rows)
        return sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))

    @cached_property
    def gradient_learners(self) -> list[str]:
        """The learners that the verdict is about: compared with in-context learning, and no control."""
        compared = {
            row["label"]
            for row in self.rows
            if row["metric"] == "sim_aou" and row["reference"] == "in-context"
        }
        return [name for name in self.learners if name in compared and self.role(name) == "hypothesis"]

    @cached_property
    def learnings(self) -> dict[str, LearnerSpec]:
        """Who is meant by a label, at one of its rates."""
        return {row["label"]: learning_of(row) for row in self.all_rows}

    @property
    def palette(self) -> Palette:
        """The page's, where there is one: the same label looks the same beside another model."""
        if self._palette is None:
            self._palette = Palette(self.learnings.values())
        return self._palette

    def colour(self, label: str) -> str:
        """A label's colour; what is no learner of this subject is grey."""
        return self.palette.colour(label)

    @cached_property
    def _roles(self) -> dict[str, str]:
        return {row["label"]: row["role"] for row in self.all_rows}

    def role(self, label: str) -> str:
        """What the learner of a label is to the question."""
        return self._roles.get(label, "hypothesis")

    def verdicts(self) -> list[Document]:
        """This subject's, that of the charts' setting first."""
        found = [
            v
            for v in self.source.verdicts
            if v["setting"]["model"] == self.model and _same_json(v["setting"]["options"], self.sitting)
        ]
        fixed = self.setting
        names = ("shots", "demo_labels", "corrupt", "queries_from")
        own = tuple(getattr(fixed, name) for name in names)
        return sorted(found, key=lambda v: tuple(v["setting"][name] for name in names) != own)


def label_of(columns: Mapping[str, Any]) -> str:
    """A learner with the options that are its own, and its control: ``lcgd[readout=attention]``.

    >>> options = '{"read_at":"first-label","readout":"attention"}'
    >>> label_of({"learner": "lcgd", "control": None, "options": options})
    'lcgd[readout=attention]'
    """
    return learning_of(columns).label


def subjects(sources: Sequence[ReportedRun]) -> list[Subject]:
    """Every model of every run, in the order given."""
    found = []
    for source in sources:
        if source.has_cells:
            taught = [row for row in source.summary if row["role"] != "baseline"]
            pairs = dict.fromkeys((row["model"], sitting_options(row)) for row in taught or source.summary)
            several = sum(s.has_cells for s in sources) > 1
            sittings = Counter(model for model, _ in pairs)
            found += [
                Subject(source, model, sitting, several, alone=sittings[model] == 1)
                for model, sitting in pairs
            ]
    shared = Palette(learning for subject in found for learning in subject.learnings.values())
    for subject in found:
        subject._palette = shared
    return found


def _same_json(left: str, right: str) -> bool:
    return bool(json.loads(left) == json.loads(right))
