"""A run folder as the report reads it: its rows, its summary, its verdicts, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dualscope.core.canonical import fingerprint
from dualscope.core.config_file import parsed_yaml
from dualscope.core.errors import InputError
from dualscope.core.folder import Folder, RemoteFolder, check_reachable
from dualscope.core.rows import CELL_COLUMNS, ExperimentRow, Row, SummaryRow
from dualscope.core.spec import CellSpec
from dualscope.core.untrusted_files import reading
from dualscope.findings import summary
from dualscope.findings.responses import response_verdicts
from dualscope.findings.verdict import verdicts
from dualscope.studies import choices
from dualscope.studies.provenance import describe_learners, known
from dualscope.studies.run_folder.cell_files import Broken
from dualscope.studies.run_folder.storage import RunFolder

Document = dict[str, Any]
"""A JSON or YAML file of a run, as it was written."""
REGRESSION = "regression.parquet"
COMPARES = pa.array(["explained", "jaccard", "sim_aou"])  # metrics that name what a cell was compared with
STRANGE = "no run writes such a cell: move the file away, and the command that made the run computes it again"
KEPT = 10_000  # cells whose rows stay in memory


class ReportedRun:
    """One run folder: a study's, a regression experiment's, or both."""

    def __init__(self, place: str | Path, name: str | None = None) -> None:
        folder = Folder.at(place)
        if isinstance(folder, RemoteFolder):
            check_reachable(folder)
        self.run = RunFolder(folder)
        self.has_regression = folder.exists(REGRESSION)
        self.has_cells = bool(self.run.stored() or self.run.pack.broken)
        if not self.has_cells and not self.has_regression:
            RunFolder.open(place)  # says what is wrong, where it is no run at all
            raise InputError(f"{place}: no cell of this run is finished, so there is nothing to report yet")
        describe_learners(self.run)
        self.name = name or str(folder).rstrip("/").rpartition("/")[2]

    @property
    def results(self) -> str:
        """What names these results: a hash of the ids of all cells, which hold all that determines their numbers."""
        return fingerprint(sorted(self.all_cells))[:10]

    @property
    def computed_on(self) -> str:
        """What it ran on; of results that come with the package, the machine and the date."""
        said = [f"{what} {where}" for what, where in self.provenance.get("where", {}).items()]
        said += [self.provenance[key] for key in ("machine", "date") if key in self.provenance]
        return ", ".join(said) or "–"

    @cached_property
    def all_cells(self) -> dict[str, CellSpec]:
        """By their ids, in the order of the last plan; without what later ones stand for, or what has no rows."""
        found = {}
        for cell in self.run.pack.in_order(self.run.stored() - self.broken.keys()):
            table = self.table(cell)
            if table.num_rows:
                with reading(self.run.folder.path(self.run.file("cells", cell)), STRANGE):
                    first = {name: table[name][0].as_py() for name in CELL_COLUMNS}
                    found[cell] = CellSpec.of_row(first, _reference(table))
                    _ = found[cell].learning.label  # its options are JSON
        superseded = self._superseded(found)
        place = {name: i for i, name in enumerate(self.provenance.get("cells") or ())}
        names = sorted(found, key=lambda name: (place.get(name, len(place)), name))
        return {name: found[name] for name in names if name not in superseded}

    @cached_property
    def cells(self) -> dict[str, CellSpec]:
        """Those that are about a learner's change as a whole."""
        return {name: cell for name, cell in self.all_cells.items() if not cell.is_response}

    @cached_property
    def cells_of(self) -> dict[str, dict[str, CellSpec]]:
        """The same by their models' names, because a page of many models asks for each one's."""
        found: dict[str, dict[str, CellSpec]] = {}
        for name, cell in self.cells.items():
            found.setdefault(cell.episode.model.name, {})[name] = cell
        return found

    @cached_property
    def response_cells(self) -> dict[str, CellSpec]:
        """Those that are about how a learner responds to an intervention."""
        return {name: cell for name, cell in self.all_cells.items() if cell.is_response}

    @cached_property
    def response_verdicts(self) -> list[Document]:
        return response_verdicts(self.run, self.response_cells, keep=False)

    def heads(self, cell: str, metric: str) -> list[Row]:
        """The rows of single heads of one metric."""
        if cell in self._without_heads:
            return []
        table = self.run.rows([cell])
        return list(table.filter(pc.and_(pc.is_valid(table["head"]), pc.equal(table["metric"], metric))).to_pylist())

    def table(self, cell: str) -> pa.Table:
        """A cell's rows without those of single heads, which few charts show."""
        return self._table(cell)

    @cached_property
    def _without_heads(self) -> set[str]:
        """Cells that were read and have no rows of single heads: most, and they are asked for every metric."""
        return set()

    @cached_property
    def _table(self) -> Callable[[str], pa.Table]:
        def read(cell: str) -> pa.Table:
            table = self.run.rows([cell])
            if table["head"].null_count == table.num_rows:
                self._without_heads.add(cell)
                return table
            return table.filter(pc.is_null(table["head"]))

        return lru_cache(maxsize=KEPT)(read)

    def _superseded(self, cells: Mapping[str, CellSpec]) -> set[str]:
        """Cells of earlier runs in this folder that rows could not tell from later ones.

        Other queries, an edited template or plugin make other cells with the same columns; a mean over both would be of
        no experiment. Kept are those of the last run, or else the newest.
        """
        last = set(self.provenance.get("cells") or ())
        alike: dict[CellSpec, list[str]] = {}
        for name, cell in cells.items():
            alike.setdefault(cell, []).append(name)
        found: set[str] = set()
        for names in alike.values():
            if len(names) > 1:
                found |= set(names) - ((last & set(names)) or {max(names, key=self.run.written)})
        return found

    @cached_property
    def superseded(self) -> int:
        """How many cells are in the run and not in the report, because later ones stand for them."""
        left = self.run.stored() - self.broken.keys() - self.all_cells.keys()
        return sum(self.table(cell).num_rows > 0 for cell in left)

    @cached_property
    def broken(self) -> dict[str, Broken]:
        """Cells whose files cannot be read, and why: said in the report, and left out of it."""
        return {**self.run.unreadable(self.run.stored()), **self.run.pack.broken}

    @cached_property
    def summary(self) -> list[SummaryRow]:
        """Aggregates over seeds with their intervals; what the run wrote, where that is of the same cells."""
        found = summary.recalled(self.run, self.cells)
        return summary.compute(self.run, self.cells) if found is None else found

    @cached_property
    def verdicts(self) -> list[Document]:
        return verdicts(self.run, self.cells, keep=False)

    @cached_property
    def study(self) -> Document:
        return self._yaml("study.yaml")

    @cached_property
    def provenance(self) -> Document:
        return known(self.run)

    @cached_property
    def choices(self) -> list[Document]:
        """What learners left open, chosen on spare examples, with the curves."""
        return [choice for _, choice in sorted(choices.chosen(self.run).items())]

    @cached_property
    def regression(self) -> list[ExperimentRow]:
        """The rows of a regression experiment; none where the run is not one."""
        if not self.has_regression:
            return []
        import pyarrow.parquet as pq

        with reading(self.run.folder.path(REGRESSION), "run the experiment again"):
            file = pq.ParquetFile(pa.BufferReader(self.run.folder.read(REGRESSION)))
            return list(file.read(use_threads=False).to_pylist())

    @cached_property
    def regression_settings(self) -> Document:
        return self._yaml("regression.yaml")

    def failures(self) -> dict[str, str]:
        return self.run.failures()

    def _yaml(self, name: str) -> Document:
        if not self.run.folder.exists(name):
            return {}
        with reading(self.run.folder.path(name), "the command that made the run writes it again"):
            return parsed_yaml(self.run.folder.read(name).decode(), self.run.folder.path(name))[0]


def _reference(table: pa.Table) -> str | None:
    """What the cell was compared with: named by every row of a metric that compares."""
    compares = pc.is_in(table["metric"], COMPARES)
    return next((name for name in table["reference"].filter(compares).to_pylist() if name), None)
