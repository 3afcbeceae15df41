"""What a section speaks of: one model of one run, in the setting that most charts show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from dualscope.core.rows import SummaryRow
from dualscope.core.spec import CellSpec, EpisodeSpec, LearnerSpec
from dualscope.core.words import VARIANTS
from dualscope.findings.summary import ALL_TASKS
from dualscope.report.charts.palette import Palette
from dualscope.report.reported_run import Document, ReportedRun

FIRST = ("zero-shot", "in-context", "gd", "lcgd")
OWN_REFERENCE = ("in-context", "zero-shot", None)


class LabelledRow(SummaryRow):
    """A row of a summary, and what its learner is called."""

    label: str


class Subject:
    """A model in a run, read and taught in one way: of several (read positions, precisions) each is a subject."""

    def __init__(self, source: ReportedRun, reading: EpisodeSpec, several_runs: bool, alone: bool = False) -> None:
        self.source, self.model, self.reading = source, reading.model.name, reading
        self._palette: Palette | None = None
        # A model that was read in one way only is told by its name: its precision is among the facts of the run.
        said = {name: value for name, value in reading.unusual.items() if not (alone and name == "dtype")}
        options = ", ".join(f"{name} {value}" for name, value in said.items())
        self.name = (f"{source.name}: " if several_runs else "") + self.model + (f" ({options})" if options else "")

    @cached_property
    def all_rows(self) -> list[LabelledRow]:
        """The summary's rows of this model and way of reading, each with the learner's label."""
        return [{**row, "label": label_of(row)} for row in self.source.summary if self._is_read_so(row)]

    def _is_read_so(self, columns: Mapping[str, Any]) -> bool:
        # Every subject of a page asks for every row: most are of another model, and need no spec to be told so.
        is_own = columns["model"] == self.model
        return is_own and EpisodeSpec.of_row(columns).reading.is_within(self.reading, columns["role"])

    @cached_property
    def setting(self) -> EpisodeSpec:
        """What most charts hold fixed where a study varies it."""
        return EpisodeSpec.of_row(self._taught[0]).setting if self._taught else self.reading

    @cached_property
    def _taught(self) -> list[LabelledRow]:
        """The rows of learners that see demonstrations: gold labels, the task's own queries, most shots if there."""
        rows = [row for row in self.all_rows if row["role"] != "baseline" and row["task"] != ALL_TASKS]
        labels = [row["demo_labels"] for row in rows]
        rows = [row for row in rows if row["demo_labels"] == ("gold" if "gold" in labels else labels[0])]
        asked = [row["queries_from"] for row in rows]
        rows = [row for row in rows if row["queries_from"] == (None if None in asked else asked[0])]
        most = max((row["shots"] for row in rows), default=None)
        return [row for row in rows if row["shots"] == most]

    @cached_property
    def several_rates(self) -> bool:
        """Whether some learner was run at several rates on one task."""
        rates: dict[tuple[str, str], set[float]] = {}
        for row in self._taught:
            if row["lr"] is not None:
                rates.setdefault((row["task"], row["label"]), set()).add(row["lr"])
        return any(len(own) > 1 for own in rates.values())

    @cached_property
    def rates(self) -> dict[str, float | None]:
        """By task, the rate that charts show where there are several: that at which plain GD is most accurate."""
        rates: dict[str, float | None] = {}
        for task in dict.fromkeys(row["task"] for row in self._taught):
            own = [row for row in self._taught if row["task"] == task and row["lr"] is not None]
            trained = [r for r in own if r["metric"] == "accuracy" and r["variant"] == "trained"]
            plain = [r for r in trained if r["label"] == "gd"] or trained or own
            best = max(plain, key=lambda r: (r["value"], -(r["lr"] or 0)), default=None)
            rates[task] = None if best is None else best["lr"]
        return rates

    def in_setting(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a summary is of the setting that most charts show."""
        if row["model"] != self.model or not EpisodeSpec.of_row(row).is_within(self.setting, row["role"]):
            return False
        return self._is_shown(row["task"], row["lr"])

    def _is_shown(self, task: str, rate: float | None) -> bool:
        return not self.several_rates or rate is None or rate == self.rates.get(task, rate)

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
    def cells(self) -> dict[str, CellSpec]:
        """The cells of the setting, by their ids."""
        own = self.source.cells_of.get(self.model, {})
        return {
            name: cell
            for name, cell in own.items()
            if cell.is_within(self.setting) and self._is_shown(cell.episode.task, cell.learning.lr)
        }

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row["task"] for row in self.all_rows if row["task"] != ALL_TASKS))

    @cached_property
    def variants(self) -> list[str]:
        return [name for name in VARIANTS if any(row["variant"] == name for row in self.all_rows)]

    @cached_property
    def learners(self) -> list[str]:
        """Every learner's label, the best-known ones first."""
        names = dict.fromkeys(row["label"] for row in self.rows)
        return sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))

    @cached_property
    def gradient_learners(self) -> list[str]:
        """The learners that the verdict is about: compared with in-context learning, and no control."""
        compared = {
            row["label"] for row in self.rows if row["metric"] == "sim_aou" and row["reference"] == "in-context"
        }
        return [name for name in self.learners if name in compared and self.role(name) == "hypothesis"]

    @cached_property
    def learnings(self) -> dict[str, LearnerSpec]:
        """Who is meant by a label, at one of its rates."""
        return {row["label"]: LearnerSpec.of_row(row) for row in self.all_rows}

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
        settings = [(EpisodeSpec.of_row(verdict["setting"]).setting, verdict) for verdict in self.source.verdicts]
        found = [(setting, verdict) for setting, verdict in settings if setting.reading == self.reading]
        return [verdict for _, verdict in sorted(found, key=lambda pair: pair[0] != self.setting)]


def where(rows: Iterable[LabelledRow], **columns: Any) -> list[LabelledRow]:
    """The rows whose columns have these values; a tuple or set stands for any of its values."""
    asked = [(name, set(v) if isinstance(v, (tuple, set, list)) else {v}) for name, v in columns.items()]
    return [row for row in rows if all(row.get(name) in values for name, values in asked)]


def label_of(columns: Mapping[str, Any]) -> str:
    """A learner with the options that are its own, and its control: ``lcgd[readout=attention]``.

    >>> label_of({"learner": "lcgd", "control": None, "options": '{"readout":"attention"}'})
    'lcgd[readout=attention]'
    """
    return LearnerSpec.of_row(columns).label


def subjects(sources: Sequence[ReportedRun]) -> list[Subject]:
    """Every model of every run, in the order given."""
    found = []
    for source in sources:
        if source.has_cells:
            taught = [row for row in source.summary if row["role"] != "baseline"]
            readings = dict.fromkeys(EpisodeSpec.of_row(row).reading for row in taught or source.summary)
            several = sum(s.has_cells for s in sources) > 1
            models = Counter(reading.model.name for reading in readings)
            found += [Subject(source, reading, several, alone=models[reading.model.name] == 1) for reading in readings]
    shared = Palette(learning for subject in found for learning in subject.learnings.values())
    for subject in found:
        subject._palette = shared
    return found
