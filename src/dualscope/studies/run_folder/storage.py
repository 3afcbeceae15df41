"""A run: the folder that holds one study's results. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from dualscope.core.errors import InputError, suggest
from dualscope.core.folder import Folder, check_writable
from dualscope.core.remote_folder import RemoteFolder, check_reachable
from dualscope.core.rows import COLUMNS
from dualscope.core.untrusted_files import reason
from dualscope.studies.run_folder.cell_files import CELL, SCHEMA, parquet_bytes
from dualscope.studies.run_folder.cells import WITH_RESPONSES, WITHOUT_QUERIES, Cells
from dualscope.studies.run_folder.claims import STALE
from dualscope.studies.run_folder.part_files import INDEX

if TYPE_CHECKING:
    import pandas
    import polars

GIVEN_UP = "given up"  # noted where memory was short and something was done in another way, or not


class RunFolder(Cells):
    """A run folder, on disk or behind an fsspec URL.

    >>> import tempfile
    >>> run = RunFolder.create(tempfile.mkdtemp() + "/run")
    >>> row = {**dict.fromkeys(COLUMNS), "model": "m", "metric": "accuracy", "value": 0.5}
    >>> run.store("0123", [row])
    >>> run.table(metric="accuracy").select(["model", "value"]).to_pylist()
    [{'model': 'm', 'value': 0.5}]
    >>> run.query("select count(*) as rows from rows").to_pylist()
    [{'rows': 1}]
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}.open({str(self.folder)!r})"

    @classmethod
    def create(cls, place: str | Path) -> Self:
        """A run folder to write to, new or not; what dead processes left half-written is swept away.

        A new one is made with its first file: a study that is refused leaves nothing behind.
        """
        folder = Folder.at(place)
        if str(place).startswith(("http://", "https://")):
            raise InputError(f"--out {place}: a web address cannot be written to; give a folder, or an s3:// URL")
        if isinstance(folder, RemoteFolder):
            check_reachable(folder)
        else:
            check_writable(folder.root)
        folder.sweep(STALE)
        return cls(folder)

    @classmethod
    def open(cls, place: str | Path) -> Self:
        """An existing run folder."""
        folder = Folder.at(place)
        if isinstance(folder, RemoteFolder):
            check_reachable(folder)
        if not any(folder.names(part) for part in ("cells", INDEX)) and not folder.exists("study.yaml"):
            raise InputError(
                f"{place}: not a run folder (no study.yaml, no cells, no regression.parquet); give what `run --out` "
                "or `regression --out` wrote"
            )
        return cls(folder)

    # cells

    def has_trace(self, cell: str) -> bool:
        """Whether its trace is here, and as long as its header says."""
        name = f"traces/{cell}.safetensors"
        if isinstance(self.folder, RemoteFolder):
            return self.folder.exists(name)
        from safetensors import SafetensorError, safe_open

        try:
            self.folder.stream(name).close()  # a pipe would be waited for
            with safe_open(self.folder.path(name), "numpy"):
                return True
        except (OSError, SafetensorError):
            return False

    def store(
        self,
        cell: str,
        rows: Sequence[Mapping[str, Any]],
        queries: pa.Table | None = None,
        trace: Callable[[Path], None] | None = None,
        responses: pa.Table | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Keep a finished cell. The rows come last: once they are there, everything is."""
        if trace is not None:
            self.folder.write_by(f"traces/{cell}.safetensors", trace)
        if responses is not None:
            named = responses.replace_schema_metadata({**(responses.schema.metadata or {}), CELL: cell})
            self.folder.write(f"responses/{cell}.parquet", parquet_bytes(named))
        if queries is not None:
            named = queries.replace_schema_metadata({**(queries.schema.metadata or {}), CELL: cell})
            self.folder.write(f"queries/{cell}.parquet", parquet_bytes(named))
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)
        about = {**(notes or {}), CELL: cell} | ({WITHOUT_QUERIES: "yes"} if queries is None else {})
        about |= {WITH_RESPONSES: "yes"} if responses is not None else {}
        self.folder.write(f"cells/{cell}.parquet", parquet_bytes(table.replace_schema_metadata(about)))
        self.forgive(cell)

    # failures

    def fail(self, cell: str, reason: str) -> None:
        self.folder.write(f"failures/{cell}.txt", reason.encode())

    def forgive(self, cell: str) -> None:
        self.folder.remove(f"failures/{cell}.txt")

    def failures(self) -> dict[str, str]:
        """Why cells failed, by id: the first line is for people, the rest is the traceback."""
        names = self.folder.names("failures", ".txt")
        found = {}
        for name in names:
            try:
                found[name.removesuffix(".txt")] = self.folder.read(f"failures/{name}").decode(errors="replace")
            except OSError as error:
                found[name.removesuffix(".txt")] = f"failed; failures/{name} cannot be read ({reason(error)})"
        return found

    # reading

    def rows(self, cells: Iterable[str] | None = None) -> pa.Table:
        """All rows (or some cells'), in the order of the cells' ids: the same whoever computed them."""
        wanted = sorted(self.every() if cells is None else cells)
        if len(wanted) == 1:
            with self.told("cells", wanted[0]):
                return self.read_rows(wanted[0])
        pack = self.pack
        packed = pack.cells - self.loose()
        with self.told("packed"):
            together, at = pack.whole([cell for cell in wanted if cell in packed]), 0
        tables = []
        for is_packed, some in groupby(wanted, lambda cell: cell in packed):
            if is_packed:
                length = sum(pack.entry(cell).rows for cell in some)
                tables.append(together.slice(at, length))
                at += length
                continue
            for cell in some:
                with self.told("cells", cell):
                    tables.append(self.read_rows(cell))
        return pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def queries(self, cell: str) -> pa.Table:
        """A cell's values per query: what the statistics resample."""
        with self.told("queries", cell):
            return self.read_queries(cell)

    def responses(self, cell: str) -> pa.Table:
        """The inner products of a cell's responses: what findings re-pair."""
        with self.told("responses", cell):
            return self.read_responses(cell)

    def table(self, **where: Any) -> pa.Table:
        """The rows in which the named columns have these values: ``table(learner="gd", layer=None)``."""
        import pyarrow.compute as pc

        table = self.rows()
        for column, value in where.items():
            if column not in COLUMNS:
                raise InputError(f"rows have no column '{column}'; they have {', '.join(COLUMNS)}")
            if column == "metric" and table.num_rows and value not in (known := table[column].unique().to_pylist()):
                raise InputError(f"no such metric in this run: '{value}': {suggest(str(value), known)}")
            wanted = table[column].is_null() if value is None else pc.equal(table[column], value)
            table = table.filter(wanted)
        return table

    def query(self, sql: str) -> pa.Table:
        """Any SQL over ``rows`` and ``queries`` (both with the cell's id), answered by DuckDB."""
        from dualscope.studies.run_folder.sql import answer

        return answer(self, sql)

    def to_pandas(self) -> pandas.DataFrame:
        return self.rows().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        try:
            import polars
        except ImportError:
            raise InputError("to_polars() needs polars: pip install polars") from None

        frame = polars.from_arrow(self.rows())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_arrow(self) -> pa.Table:
        return self.rows()

    # the files beside the cells

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the run; empty where there is none."""
        try:
            content = json.loads(self.folder.read(name))
            if not isinstance(content, dict):
                raise ValueError("not an object")
            return content
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{self.folder.path(name)}: not valid JSON ({reason(error)}); delete it, it is written again"
            ) from None
        except OSError as error:
            raise InputError(f"{self.folder.path(name)}: cannot be read ({reason(error)})") from None

    def recall(self, name: str) -> dict[str, Any]:
        """The same for what can be worked out again: empty also where it is damaged."""
        try:
            return self.read_json(name)
        except InputError:
            return {}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.folder.write(name, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
