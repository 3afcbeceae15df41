"""The packed part of a run: many cells in a few Parquet files, partitioned by model and task.

    packed/rows/model=M/task=T/00000001-1a2b3c4d.parquet      cells' rows, one cell after the other, with a column cell
    packed/queries/model=M/task=T/00000001-1a2b3c4d.parquet   the same cells' tables of queries, all their columns
    packed/index/00000001.parquet                             which cells these two hold, where, and their digests

A part is there once its index is: that file is created last, and only one process can create a number. The files of
rows and queries have names that no other process gives, and a number is never used again: so a process that stood still
for a day can overwrite or remove nothing that others have packed since. A cell in two parts counts as the later says.

An index notes the digests of the two files that it is about, and a seal over itself. So no reader takes rows that
another process, a disk or a hand has changed for those that were packed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dualscope.core.canonical import fingerprint
from dualscope.core.folder import Folder
from dualscope.core.untrusted_files import reason
from dualscope.studies.run_folder.cell_files import SCHEMA, Broken, is_damage, parquet_bytes

if TYPE_CHECKING:
    import pyarrow.dataset as ds


INDEX = "packed/index"
PART, SCHEMAS = "part", "schemas"  # noted in the files: which part they are of; how tables of queries look
DATA, DIGESTS, SEAL = "data", "digests", "seal"
"""Noted in an index: the name of its files of rows and queries, their SHA-256, and that of all that it says itself."""
NUMBER, CELL_ID = re.compile(r"[0-9]{8}"), re.compile(r"[A-Za-z0-9_-]{1,100}")
LONGEST_NAME = 200  # of a folder
ROWS = pa.schema([pa.field("cell", pa.string()), *SCHEMA])
ENTRIES = pa.schema(
    [
        *((name, pa.string()) for name in ("cell", "model", "task")),
        *((name, pa.int64()) for name in ("first", "rows", "first_query", "queries", "schema")),
        ("written", pa.float64()),
        ("notes", pa.map_(pa.string(), pa.string())),
        *((name, pa.string()) for name in ("rows_sha256", "queries_sha256")),
    ]
)
Kind = Literal["rows", "queries"]


class Entry(NamedTuple):
    """What the index says of a cell."""

    part: str
    cell: str
    model: str | None
    task: str | None
    first: int
    rows: int
    first_query: int | None  # None: it has no table of queries
    queries: int | None
    schema: int | None
    written: float
    notes: dict[str, str]
    rows_sha256: str
    queries_sha256: str | None


def file_of(kind: Kind, model: str | None, task: str | None, part: str) -> str:
    """Where a part's rows or queries are.

    >>> file_of("rows", "owner/model@step1000", "sst2", "00000001")
    'packed/rows/model=owner%2Fmodel%40step1000/task=sst2/00000001.parquet'
    """
    return f"packed/{kind}/model={_folder_name(model)}/task={_folder_name(task)}/{part}.parquet"


def _folder_name(value: str | None) -> str:
    """As Hive has it; the columns in the files say the same, so that the folders' names are never parsed."""
    if not value:
        return "__HIVE_DEFAULT_PARTITION__"
    name = quote(value, safe="")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{fingerprint(value)[:8]}"


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Whatever is wrong with a part is said with its name. One that is missing is damage, not a way that is blocked.

    Inside, only what is in the file is looked at: whatever fails (a key, a type, a number) is the file's fault.
    """
    try:
        yield
    except FileNotFoundError:
        raise pa.ArrowInvalid(f"{file} is missing") from None
    except Exception as error:
        if is_damage(error):
            said = reason(error)
            raise pa.ArrowInvalid(said if said.startswith(file) else f"{file}: {said}") from error
        raise OSError(getattr(error, "errno", None), f"{file}: {reason(error)}") from error


def seal_of(entries: pa.Table, about: Mapping[str, str]) -> str:
    """The SHA-256 of all that an index says: of its values, so that it does not depend on who wrote the file."""
    digest = hashlib.sha256(json.dumps(sorted(pair for pair in about.items() if pair[0] != SEAL)).encode())
    for name in entries.column_names:
        digest.update(name.encode())
        for piece in _values(entries[name].combine_chunks()):
            digest.update(piece)
    return digest.hexdigest()


def _values(array: pa.Array) -> Iterator[bytes]:
    """A column as bytes: which values are there, how long texts and maps are, and what is in them."""
    valid = numbers(pc.is_valid(array))
    yield valid.tobytes()
    if pa.types.is_map(array.type):
        yield np.diff(numbers(array.offsets)).tobytes()
        yield from _values(array.keys)
        yield from _values(array.items)
    elif pa.types.is_string(array.type):
        lengths, content = _texts(array)
        if lengths[~valid].any():  # where none is, something stands all the same
            lengths, content = _texts(array.fill_null(""))
        yield lengths.tobytes()
        yield content
    else:
        yield np.where(valid, numbers(array), 0).tobytes()


def _texts(array: pa.Array) -> tuple[np.ndarray, bytes]:
    """How long texts are, in bytes, and all of them one after the other."""
    if not len(array):
        return np.empty(0, np.int32), b""
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return np.diff(ends), b"" if content is None else content[int(ends[0]) : int(ends[-1])].to_pybytes()


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of numbers or truths; where one is missing, the value is undefined.

    Arrow's `to_numpy` (as its `scalar`, and arrays of Python's lists) imports pandas where that is installed: half a
    second, which is longer than it takes to open a run of 20,000 cells.

    >>> numbers(pa.array([1.5, 2.5])).tolist(), numbers(pa.array([True, False])).tolist()
    ([1.5, 2.5], [True, False])
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    is_truth = pa.types.is_boolean(array.type)
    if is_truth:
        array = array.cast(pa.uint8())
    kind = np.dtype(str(array.type))  # double is numpy's name, too
    if not len(array):
        return np.empty(0, bool if is_truth else kind)
    found = np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]
    return found.view(bool) if is_truth else found


def noted(table: pa.Table) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}


def check_index(table: pa.Table) -> None:
    """An index of which every entry can be looked up: its ranges follow one another, and no cell is named twice."""
    if not table.schema.equals(ENTRIES) or SCHEMAS.encode() not in (table.schema.metadata or {}):
        raise pa.ArrowInvalid("not an index of packed cells")
    about = noted(table)
    if SEAL in about and about[SEAL] != seal_of(table, about):
        raise pa.ArrowInvalid("its seal is broken: it was changed after it was packed")
    if table.num_rows == 0:
        return
    for name in ("cell", "first", "rows", "written", "notes", "rows_sha256"):
        if table[name].null_count:
            raise pa.ArrowInvalid(f"an entry has no '{name}'")
    if not pc.all(pc.match_substring_regex(table["cell"], f"^{CELL_ID.pattern}$")).as_py():
        raise pa.ArrowInvalid("an entry's name is no cell's")
    if pc.count_distinct(table["cell"]).as_py() < table.num_rows:
        raise pa.ArrowInvalid("a cell is named twice")
    if any(len(table[name].unique()) != 1 for name in ("model", "task")):
        raise pa.ArrowInvalid("its cells are of several models or tasks")
    own = pc.is_valid(table["queries"])
    for name in ("first_query", "schema"):
        if not pc.is_valid(table[name]).equals(own):
            raise pa.ArrowInvalid("an entry says only half of where its queries are")
    _check_ranges(table["first"], table["rows"])
    asked = table.filter(own)
    _check_ranges(asked["first_query"], asked["queries"])
    schemas = numbers(asked["schema"])
    if len(schemas) and not 0 <= schemas.min() <= schemas.max() < len(json.loads(about[SCHEMAS])):
        raise pa.ArrowInvalid("an entry's table of queries has a schema that is not noted")


def _check_ranges(first: pa.ChunkedArray, length: pa.ChunkedArray) -> None:
    starts, lengths = numbers(first), numbers(length)
    most = 2**40  # far from where sums overflow
    if len(starts) and (min(starts.min(), lengths.min()) < 0 or max(starts.max(), lengths.max()) > most):
        raise pa.ArrowInvalid("an entry's rows are nowhere")
    if (starts[1:] < (starts + lengths)[:-1]).any():
        raise pa.ArrowInvalid("its entries overlap, or are out of order")


def check_cells(column: pa.ChunkedArray, index: pa.Table, kind: Kind) -> None:
    """Every cell's rows are where the index says, all of them and no others."""
    first, count = ("first", "rows") if kind == "rows" else ("first_query", "queries")
    entries = index.filter(pc.greater(index[count], 0))
    column = column.combine_chunks()
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if coded.null_count:
        raise pa.ArrowInvalid("the index and the part do not fit: rows of no cell")
    codes = numbers(coded.indices)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    lengths = np.diff(starts, append=len(codes))
    names = coded.dictionary.take(pa.array(codes[starts]))
    wanted = entries["cell"].combine_chunks()
    here = numbers(pc.is_in(names, wanted))  # others were discarded since
    if not (
        names.filter(pa.array(here)).equals(wanted)
        and np.array_equal(starts[here], numbers(entries[first]))
        and np.array_equal(lengths[here], numbers(entries[count]))
    ):
        raise pa.ArrowInvalid("the index and the part do not fit")


def as_it_was(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A cell's part of a wider table, with the columns and types that it had."""
    columns = [pa.nulls(table.num_rows) if pa.types.is_null(field.type) else table[field.name] for field in schema]
    return pa.table(columns, schema=schema)


def read_part(data: bytes, part: str, texts_once: Iterable[str] = ()) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, read_dictionary=list(texts_once))
    check_part(file.schema_arrow, part)
    # Not by Arrow's threads: one that still holds our bytes when the process ends aborts it, or keeps it from ending.
    return file.read(use_threads=False).combine_chunks()


def check_part(schema: pa.Schema, part: str) -> None:
    named = (schema.metadata or {}).get(PART.encode(), b"").decode(errors="replace")
    if named != part:
        raise pa.ArrowInvalid(f"it is of another part, {named}" if named else "it is no part of a packed run")


def plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


OPEN_PARTS = 16  # kept in memory, of rows and of queries each
OPEN_ENTRIES = 64
AT_ONCE = 2**20  # rows


class Pack:
    """The packed cells of a run folder; none where nothing was packed."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.broken: dict[str, Broken] = {}
        """Index files that cannot be read: which cells they hold is not known."""
        self._parts: dict[str, pa.Table] = {}
        self._where: dict[str, tuple[str, int]] = {}
        self._file = lru_cache(maxsize=2 * OPEN_PARTS)(self._read_file)
        self._rows_of = lru_cache(maxsize=OPEN_PARTS)(self._rows_alone)
        self.entry = lru_cache(maxsize=OPEN_ENTRIES)(self._entry)
        self._schemas = lru_cache(maxsize=OPEN_PARTS)(self._read_schemas)
        self._numbers = lru_cache(maxsize=None)(self._column)

    def refresh(self) -> None:
        """See what is there now; what was read before is not read again."""
        names = self.folder.names(INDEX, ".parquet")
        if self._parts.keys() | {Path(file).name for file in self.broken} == set(names):
            return
        self.broken = {}
        parts: dict[str, pa.Table] = {}
        for name in names:
            file = f"{INDEX}/{name}"
            try:
                parts[name] = self._parts.get(name) or self._read_index(file)
            except (OSError, pa.ArrowException, ValueError) as error:
                self.broken[file] = Broken(file, reason(error), is_damage(error))
        self._take(parts)

    def _take(self, parts: dict[str, pa.Table]) -> None:
        """Look cells up in these parts. While a run is packed parts are only added: what is known of others stays."""
        before, self._parts = self._parts, parts
        fresh = sorted(name for name in parts if parts[name] is not before.get(name))
        if before.keys() - parts.keys() or (before and fresh and fresh[0] <= max(before)):
            self._where, fresh = {}, sorted(parts)
        for name in fresh:
            found = parts[name]["cell"].to_pylist()
            self._where.update((cell, (name, at)) for at, cell in enumerate(found))
        for cache in (self._file, self._rows_of, self.entry, self._schemas, self._numbers):
            cache.cache_clear()

    @property
    def cells(self) -> set[str]:
        return set(self._where)

    def __contains__(self, cell: object) -> bool:
        return cell in self._where

    def _entry(self, cell: str) -> Entry:
        name, at = self._where[cell]
        table = self._parts[name]
        # Value by value: a table's own way from a row to Python takes several times as long, and every read asks.
        found = {field: table[field][at].as_py() for field in table.column_names}
        return Entry(part=Path(name).stem, **{**found, "notes": dict(found["notes"] or ())})

    def _column(self, name: str, column: str) -> np.ndarray:
        """Numbers of an index where they lie: where a cell is, is asked far more often than all that is noted of it."""
        return numbers(self._parts[name][column])

    def last_number(self) -> int:
        """The highest number that a part has, or has had: one that cannot be read has it, too."""
        stems = (Path(name).stem for name in self.folder.names(INDEX, ".parquet"))
        return max((int(stem) for stem in stems if NUMBER.fullmatch(stem)), default=0)

    def in_order(self, cells: Iterable[str]) -> list[str]:
        """So that cells of one part come together, and no file has to be opened twice; loose ones first."""
        return sorted(cells, key=lambda cell: (*self._where.get(cell, ("", 0)), cell))

    # reading

    def rows(self, cell: str) -> pa.Table:
        name, at = self._where[cell]
        first, rows = (self._numbers(name, column)[at] for column in ("first", "rows"))
        return self._rows_of(name).slice(int(first), int(rows))

    def count(self, cell: str) -> int:
        """How many rows a cell has."""
        name, at = self._where[cell]
        return int(self._numbers(name, "rows")[at])

    def queries(self, cell: str) -> pa.Table:
        """A cell's table of queries as it was, its columns in their order."""
        name, at = self._where[cell]
        if not self._parts[name]["queries"][at].is_valid:
            raise FileNotFoundError(2, "No such file or directory", f"queries/{cell}.parquet")
        first, queries, schema = (self._numbers(name, column)[at] for column in ("first_query", "queries", "schema"))
        table = self._file("queries", name).slice(int(first), int(queries))
        with naming(f"{INDEX}/{name}"):
            return as_it_was(table, self._schemas(Path(name).stem)[int(schema)])

    def whole(self, cells: Iterable[str]) -> pa.Table:
        """The rows of many cells in the order given. Texts are kept once until the end."""
        wanted = [self._where[cell] for cell in cells]
        tables, starts, lengths, total = [], {}, {}, 0
        for name in dict.fromkeys(name for name, _ in wanted):
            tables.append(self._read_file("rows", name, texts_once=True))
            starts[name] = total + numbers(self._parts[name]["first"])
            lengths[name] = numbers(self._parts[name]["rows"])
            total += tables[-1].num_rows
        if not tables:
            return SCHEMA.empty_table()
        together = pa.concat_tables(tables).unify_dictionaries().combine_chunks().drop_columns(["cell"])
        first = np.array([starts[name][at] for name, at in wanted])
        length = np.array([lengths[name][at] for name, at in wanted])
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        order = np.repeat(first, length) + within
        pieces = (together.take(pa.array(order[at : at + AT_ONCE])) for at in range(0, max(1, len(order)), AT_ONCE))
        return pa.concat_tables(piece.cast(SCHEMA) for piece in pieces)

    def _rows_alone(self, name: str) -> pa.Table:
        """A part's rows without their cells' names, which the index says."""
        return self._file("rows", name).drop_columns(["cell"])

    def _read_schemas(self, part: str) -> list[pa.Schema]:
        told = noted(self._parts[f"{part}.parquet"])[SCHEMAS]
        return [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in json.loads(told)]

    def _read_index(self, file: str) -> pa.Table:
        with naming(file):
            table = read_part(self.folder.read(file), Path(file).stem)
            check_index(table)
            return table

    def _file_of(self, kind: Kind, name: str) -> str:
        """Where an index's rows or queries are: all its cells are of one partition."""
        table = self._parts[name]
        model, task = (table[column][0].as_py() for column in ("model", "task"))
        return file_of(kind, model, task, noted(table).get(DATA, Path(name).stem))

    def _check_digest(self, kind: Kind, name: str, digest: str) -> None:
        wanted = json.loads(noted(self._parts[name]).get(DIGESTS, "{}")).get(kind, digest)
        if digest != wanted:
            raise pa.ArrowInvalid("it was changed after it was packed")

    def _read_file(self, kind: Kind, name: str, texts_once: bool = False) -> pa.Table:
        """The rows or queries of a part, which are what its index says."""
        file = self._file_of(kind, name)
        once = [field.name for field in ROWS if field.type == pa.string()] if texts_once else []
        with naming(file):
            data = self.folder.read(file)
            self._check_digest(kind, name, hashlib.sha256(data).hexdigest())
            table = read_part(data, Path(file).stem, once)
            self._check_table(kind, name, table.schema, table["cell"])
        return table

    def _check_table(self, kind: Kind, name: str, schema: pa.Schema, cells: pa.ChunkedArray) -> None:
        wanted = {"rows": ROWS, "queries": pa.schema([ROWS.field("cell")])}[kind]
        kinds = {field.name: plain(field.type) for field in schema}
        if len(kinds) < len(schema) or any(kinds.get(field.name) != field.type for field in wanted):
            raise pa.ArrowInvalid(f"not packed {kind}")
        check_cells(cells, self._parts[name], kind)

    def file(self, kind: Kind, cell: str) -> str:
        """The file that holds a cell's rows or queries."""
        return self._file_of(kind, self._where[cell][0])

    def sources(self, kind: Kind, cells: set[str]) -> list[pa.Table | ds.Dataset]:
        """What these cells can be scanned from: files of one schema together, and by itself, in memory, each part that
        holds cells of which a newer version is elsewhere. Every file is known to be what it should be.
        """
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        found: list[pa.Table | ds.Dataset] = []
        alike: dict[pa.Schema, list[str]] = {}
        for name, table in self._parts.items():
            every = table["cell"].to_pylist()
            own = {cell: at for at, cell in enumerate(every) if self._where[cell] == (name, at) and cell in cells}
            counts = table[kind].take(np.fromiter(own.values(), int)).drop_null()
            wanted = int(numbers(counts).sum())
            if not wanted:
                continue
            file = self._file_of(kind, name)
            with naming(file), self.folder.stream(file) as stream:
                self._check_digest(kind, name, digest_of(stream))
                stream.seek(0)
                parquet = pq.ParquetFile(stream, page_checksum_verification=True, read_dictionary=["cell"])
                check_part(parquet.schema_arrow, Path(file).stem)
                if parquet.metadata.num_rows == wanted:
                    named = parquet.read(columns=["cell"], use_threads=False)["cell"]
                    self._check_table(kind, name, parquet.schema_arrow, named)
                    plainly = [(field.name, plain(field.type)) for field in parquet.schema_arrow]
                    alike.setdefault(pa.schema(plainly), []).append(file)
                    continue
            whole = self._file(kind, name)
            found.append(whole.filter(pc.is_in(whole["cell"], pa.array(own, pa.string()))))
        checked = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        for schema, files in alike.items():
            where, base = self.folder.for_arrow()
            paths = [f"{base}/{file}" for file in files]
            found.append(ds.dataset(paths, schema=schema, format=checked, filesystem=where))
        return found

    # writing

    def clear_halves(self, partitions: Iterable[tuple[str | None, str | None]]) -> None:
        """Remove files of these models and tasks whose part never got its index: what a killed packing left would be
        counted twice by readers who take the data set without the index.
        """
        # An index that cannot be read, or has no cell left, does not say where its files are: they may be here.
        silent = {Path(name).stem for name in self.folder.names(INDEX, ".parquet") if not self._cells_of(name)}
        kinds: tuple[Kind, ...] = ("rows", "queries")
        known = {self._file_of(kind, name) for name in self._parts if self._cells_of(name) for kind in kinds}
        for place in {str(Path(file_of(kind, *one, "")).parent) for one in partitions for kind in kinds}:
            for name in self.folder.names(place, ".parquet"):
                if Path(name).stem.partition("-")[0] not in silent and f"{place}/{name}" not in known:
                    self.folder.remove(f"{place}/{name}")

    def _cells_of(self, name: str) -> int:
        return self._parts[name].num_rows if name in self._parts else 0

    def publish(self, number: int, entries: pa.Table, about: dict[str, str]) -> bool:
        """Create the index of a part; False where another process has created one of this number."""
        part = f"{number:08d}"
        return self.folder.create(f"{INDEX}/{part}.parquet", _index_bytes(entries, {**about, PART: part}))

    def part(self, kind: Kind, number: int) -> pa.Table:
        """All rows or queries of a part, read from the disk."""
        name = f"{number:08d}.parquet"
        if name not in self._parts:
            raise pa.ArrowInvalid(f"{INDEX}/{name}: {self.broken.get(f'{INDEX}/{name}', 'is missing')}")
        return self._read_file(kind, name)

    def withdraw(self, number: int) -> None:
        """Empty an index. Its number stays taken: it is never another's."""
        self._empty(f"{INDEX}/{number:08d}.parquet")

    def _empty(self, file: str) -> None:
        about = {PART: Path(file).stem, SCHEMAS: "[]"}
        self.folder.write(file, _index_bytes(ENTRIES.empty_table(), about))

    def discard(self, cells: Iterable[str]) -> None:
        """Leave cells out of the index, so that they are computed again."""
        gone = [self._where[cell] for cell in cells if cell in self._where]
        parts = dict(self._parts)
        for name in {name for name, _ in gone}:
            table = parts[name]
            drop = [at for other, at in gone if other == name]
            kept = table.take(np.setdiff1d(np.arange(table.num_rows), drop))
            self.folder.write(f"{INDEX}/{name}", _index_bytes(kept, noted(table)))
            parts[name] = self._read_index(f"{INDEX}/{name}")
        self._take(parts)

    def discard_broken(self) -> Iterator[Broken]:
        """Empty index files whose content is damaged: their cells are then not there."""
        for file, broken in list(self.broken.items()):
            if broken.damaged:
                if NUMBER.fullmatch(Path(file).stem):
                    self._empty(file)
                else:
                    self.folder.remove(file)
                del self.broken[file]
                yield broken


def digest_of(stream: IO[bytes]) -> str:
    """The SHA-256 of all that is in a stream: of a file far away, too, which has no buffer to read into."""
    digest = hashlib.sha256()
    while piece := stream.read(2**20):
        digest.update(piece)
    return digest.hexdigest()


def _index_bytes(entries: pa.Table, about: dict[str, str]) -> bytes:
    bare = entries.replace_schema_metadata(None)
    return parquet_bytes(bare.replace_schema_metadata({**about, SEAL: seal_of(bare, about)}))
