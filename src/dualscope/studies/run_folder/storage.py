"""A run: the folder that holds one study's results. Nothing here needs torch.

Its cells are in files of their own, or packed; `Cells` reads both alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.canonical import fingerprint
from dualscope.core.command_hints import called
from dualscope.core.errors import InputError, suggest
from dualscope.core.folder import Folder, RemoteFolder, check_reachable, check_remote_not_kept, check_writable
from dualscope.core.rows import COLUMNS
from dualscope.core.untrusted_files import reading, reason
from dualscope.studies.run_folder.cell_files import (
    CELL,
    SCHEMA,
    Broken,
    is_damage,
    notes_of,
    parquet_bytes,
    queries_of,
    responses_of,
    rows_of,
    schema_of,
)
from dualscope.studies.run_folder.claims import STALE
from dualscope.studies.run_folder.packed_cells import INDEX, ROWS, Kind, Pack

if TYPE_CHECKING:
    import pandas
    import polars

    from dualscope.tasks import Lesson


T = TypeVar("T")
MENDED = f"`{called('run')}` computes what is damaged again"
WITH_RESPONSES = "with responses"  # noted beside a cell that has products of responses
WITHOUT_QUERIES = "without queries"  # noted beside a cell that never had a table of them


class Cells:
    """What is stored of every cell."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.known = Pack(folder)
        """What is packed, as it was when we last looked."""

    @property
    def pack(self) -> Pack:
        """What of the run is packed, as it is now."""
        self.known.refresh()
        return self.known

    def stored(self) -> set[str]:
        """The ids of the cells whose rows are here, loose or packed."""
        return self.loose() | self.pack.cells  # in this order: a cell that is being packed is in one of them

    def loose(self) -> set[str]:
        """Those that have files of their own."""
        return {name.removesuffix(".parquet") for name in self.folder.names("cells", ".parquet")}

    def has(self, cell: str) -> bool:
        return self.folder.exists(f"cells/{cell}.parquet") or cell in self.pack

    def every(self) -> set[str]:
        """Every cell; not fewer where an index cannot be read."""
        found = self.stored()
        for broken in self.pack.broken.values():
            raise InputError(f"{self.folder.path(broken.file)}: cannot be read ({broken.why}); {MENDED}")
        return found

    @contextmanager
    def told(self, part: str, cell: str | None = None) -> Iterator[None]:
        """Inside, what cannot be read of a part of the folder, or of a cell there, is said with the file's name."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            name = part if cell is None else self.file(part, cell)
            raise InputError(f"{self.folder.path(name)}: cannot be read ({reason(error)}); {MENDED}") from error

    def read_rows(self, cell: str) -> pa.Table:
        """A cell's rows; errors as they come."""
        return self._from(
            cell, f"cells/{cell}.parquet", lambda data: rows_of(data, cell), lambda: self.known.rows(cell)
        )

    def read_queries(self, cell: str) -> pa.Table:
        return self._from(
            cell, f"queries/{cell}.parquet", lambda data: queries_of(data, cell), lambda: self.known.queries(cell)
        )

    def read_responses(self, cell: str) -> pa.Table:
        return responses_of(self.folder.read(f"responses/{cell}.parquet"), cell)

    def _from(self, cell: str, name: str, loose: Callable[[bytes], T], packed: Callable[[], T]) -> T:
        """From the cell's own file, or where there is none from the pack; it may be packed while we look."""
        if cell in self.known and not self.folder.exists(name):
            return packed()
        try:
            return loose(self.folder.read(name))
        except FileNotFoundError:
            if cell not in self.pack:
                raise
            return packed()

    def unreadable(self, cells: Iterable[str]) -> dict[str, Broken]:
        """Which of these stored cells cannot be read back, and why."""
        broken = {}
        for cell in self.pack.in_order(cells):
            kinds: tuple[tuple[str, Callable[[str], pa.Table]], ...] = (
                ("cells", self.read_rows),
                ("queries", self.read_queries),
                ("responses", self.read_responses),
            )
            notes: dict[str, str] = {}
            for part, read in kinds:
                try:
                    if part == "queries":
                        notes = self.notes(cell)
                        if WITHOUT_QUERIES in notes:
                            continue
                    if part == "responses" and WITH_RESPONSES not in notes:
                        continue
                    read(cell)
                except (OSError, pa.ArrowException) as error:
                    broken[cell] = Broken(self.file(part, cell), reason(error), is_damage(error))
                    break
        return broken

    def file(self, part: str, cell: str) -> str:
        """The file that holds a cell's rows or queries, for people."""
        name = f"{part}/{cell}.parquet"
        if cell not in self.known or self.folder.exists(name):
            return name
        return self.known.file("rows" if part == "cells" else "queries", cell)

    def discard(self, cells: Iterable[str]) -> None:
        """Drop cells' rows, so that they are computed again."""
        gone = list(cells)
        self.pack.discard(gone)
        for cell in gone:
            self.folder.remove(f"cells/{cell}.parquet")

    def remove_loose(self, cells: Iterable[str]) -> None:
        """Of cells that are packed, the files of their own. The rows go last: what has rows has queries somewhere."""
        for cell in cells:
            self.folder.remove(f"queries/{cell}.parquet")
            self.folder.remove(f"cells/{cell}.parquet")

    def notes(self, cell: str) -> dict[str, str]:
        """What was noted beside a cell's rows: how many seconds it took, and where."""
        return self._from(
            cell, f"cells/{cell}.parquet", lambda data: notes_of(schema_of(data)), lambda: self.known.entry(cell).notes
        )

    def written(self, cell: str) -> float:
        """When a cell was stored, to tell which of two is newer."""
        if cell in self.known and not self.folder.exists(f"cells/{cell}.parquet"):
            return self.known.entry(cell).written
        return self.folder.written(f"cells/{cell}.parquet")


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
            check_remote_not_kept(folder)
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
        """All rows (or some cells'), in the order of the cells' ids, whichever worker computed them."""
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
                length = sum(map(pack.count, some))
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

    # verdicts, which take long to reach and are reached again where another hand has changed them

    def keep_verdicts(self, name: str, stamp: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Store verdicts with what they are of, and with a digest of what they say."""
        self.write_json(name, {"of": stamp, "sha256": _digest(verdicts), "verdicts": list(verdicts)})

    def recall_verdicts(self, name: str, stamp: str) -> list[dict[str, Any]] | None:
        """The stored ones where they are of the same, and say what they said."""
        known = self.recall(name)
        found = known.get("verdicts")
        is_same = known.get("of") == stamp and known.get("sha256") == _digest(found)
        return found if is_same and isinstance(found, list) else None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


EMPTY: dict[Kind, pa.Schema] = {"rows": ROWS, "queries": pa.schema([("cell", pa.string()), ("query", pa.string())])}


def answer(run: Cells, sql: str) -> pa.Table:
    """Over the views ``rows`` and ``queries``, which are empty where there are no cells."""
    import duckdb

    with duckdb.connect() as database:
        views: tuple[Kind, ...] = ("rows", "queries")
        for view in views:
            if view in sql.lower():  # what is not asked for need not be looked at
                _offer(run, database, view)
        try:
            return database.sql(sql).to_arrow_table()
        except duckdb.Error:
            # A damaged page is found while DuckDB reads; its words are about its own pipes.
            for cell, broken in run.unreadable(run.pack.cells - run.loose()).items():
                raise InputError(
                    f"{run.folder.path(broken.file)}: cannot be read ({broken.why}; cell {cell}); {MENDED}"
                ) from None
            raise


def _offer(run: Cells, database: Any, view: Kind) -> None:
    """Loose cells are read here, file by file: DuckDB would take a path with ``[1]`` in it for a pattern, and read
    other runs. What is packed is scanned by DuckDB, which takes only the columns and rows that a query needs.
    """
    every, loose = run.every(), run.loose()
    part = "cells" if view == "rows" else "queries"
    own = [name.removesuffix(".parquet") for name in run.folder.names(part, ".parquet")]
    sources: list[Any] = []
    tables = {}
    for cell in own:
        if cell in loose:
            with run.told(part, cell):
                table = run.read_rows(cell) if view == "rows" else run.read_queries(cell)
            plain = table.replace_schema_metadata(None)
            tables[cell] = plain.append_column("cell", pa.array([cell] * table.num_rows, pa.string()))
    if tables:
        sources.append(pa.concat_tables(tables.values(), promote_options="default"))
    if packed := every - tables.keys():
        with run.told("packed"):
            sources += run.pack.sources(view, packed)
    for i, source in enumerate(sources or [EMPTY[view].empty_table()]):
        database.register(f"{view}_{i}", source)
    parts = " union all by name ".join(f"select * from {view}_{i}" for i in range(max(1, len(sources))))
    database.execute(f"create temp view {view} as {parts}")


# The texts of a run's queries, kept once an episode's queries, so that a report can show what was asked.


FOLDER = "texts"


@dataclass(frozen=True)
class Texts:
    """What a task's queries say, by their ids, and its label words."""

    task: str
    labels: tuple[str, ...]
    by_query: dict[str, str]


def store_texts(run: RunFolder, lesson: Lesson) -> None:
    """Keep an episode's queries as they were read, label words with them; nothing where they are there already."""
    episode = lesson.episode
    asked = episode.asked or episode.task
    about = {"task": episode.task.name, "labels": list(episode.task.labels)}
    name = f"{FOLDER}/{fingerprint({**about, 'queries': list(lesson.query_ids)})}.parquet"
    if run.folder.exists(name):
        return
    prompts = [asked.prompt(query).encode("utf-8", "replace").decode() for query in episode.queries]
    table = pa.table({"query": list(lesson.query_ids), "text": prompts})
    sink = pa.BufferOutputStream()
    noted = table.replace_schema_metadata({"about": json.dumps(about)})
    pq.write_table(noted, sink, compression="zstd")
    run.folder.write(name, bytes(sink.getvalue()))


def stored_texts(run: RunFolder) -> list[Texts]:
    """All that a run keeps; none where it was made without (``--no-texts``)."""
    found = []
    for name in sorted(run.folder.names(FOLDER, ".parquet")):
        with reading(run.folder.path(f"{FOLDER}/{name}"), "delete it; the report does without"):
            data = pa.BufferReader(run.folder.read(f"{FOLDER}/{name}"))
            table = pq.ParquetFile(data).read(use_threads=False)
            about = json.loads((table.schema.metadata or {})[b"about"])
            pairs = zip(table["query"].to_pylist(), table["text"].to_pylist(), strict=True)
            found.append(Texts(str(about["task"]), tuple(map(str, about["labels"])), dict(pairs)))
    return found
