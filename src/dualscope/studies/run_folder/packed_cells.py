"""The packed part of a run: many cells in a few Parquet files, partitioned by model and task.

    packed/rows/model=M/task=T/00000001-1a2b3c4d.parquet      cells' rows, one cell after the other, with a column cell
    packed/queries/model=M/task=T/00000001-1a2b3c4d.parquet   the same cells' tables of queries, all their columns
    packed/index/00000001.parquet                             which cells these two hold, where, and their digests

A part is there once its index is: that file is created last, and only one process can create a number. The files of
rows and queries have names that no other process gives, and a number is never used again: so a process that stood still
for a day can overwrite or remove nothing that others have packed since. A cell in two parts counts as the later says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.folder import Folder
from dualscope.core.untrusted_files import reason
from dualscope.studies.run_folder.cell_files import SCHEMA, Broken, is_damage, parquet_bytes
from dualscope.studies.run_folder.part_files import (
    DATA,
    DIGESTS,
    ENTRIES,
    INDEX,
    NUMBER,
    PART,
    ROWS,
    SCHEMAS,
    SEAL,
    Entry,
    Kind,
    as_it_was,
    check_cells,
    check_index,
    check_part,
    file_of,
    naming,
    noted,
    plain,
    read_part,
    seal_of,
)

if TYPE_CHECKING:
    import pyarrow.dataset as ds

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
        self.entry = lru_cache(maxsize=OPEN_ENTRIES)(self._entry)
        self._schemas = lru_cache(maxsize=OPEN_PARTS)(self._read_schemas)

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
        for cache in (self._file, self.entry, self._schemas):
            cache.cache_clear()

    @property
    def cells(self) -> set[str]:
        return set(self._where)

    def __contains__(self, cell: object) -> bool:
        return cell in self._where

    def _entry(self, cell: str) -> Entry:
        name, at = self._where[cell]
        found = self._parts[name].slice(at, 1).to_pylist()[0]
        return Entry(part=Path(name).stem, **{**found, "notes": dict(found["notes"] or ())})

    def last_number(self) -> int:
        """The highest number that a part has, or has had: one that cannot be read has it, too."""
        stems = (Path(name).stem for name in self.folder.names(INDEX, ".parquet"))
        return max((int(stem) for stem in stems if NUMBER.fullmatch(stem)), default=0)

    def in_order(self, cells: Iterable[str]) -> list[str]:
        """So that cells of one part come together, and no file has to be opened twice; loose ones first."""
        return sorted(cells, key=lambda cell: (*self._where.get(cell, ("", 0)), cell))

    # reading

    def rows(self, cell: str) -> pa.Table:
        entry = self.entry(cell)
        return self._own(entry, "rows").slice(entry.first, entry.rows).drop_columns(["cell"])

    def queries(self, cell: str) -> pa.Table:
        """A cell's table of queries as it was, its columns in their order."""
        entry = self.entry(cell)
        if entry.first_query is None or entry.queries is None or entry.schema is None:
            raise FileNotFoundError(2, "No such file or directory", f"queries/{cell}.parquet")
        table = self._own(entry, "queries").slice(entry.first_query, entry.queries)
        with naming(f"{INDEX}/{entry.part}.parquet"):
            return as_it_was(table, self._schemas(entry.part)[entry.schema])

    def whole(self, cells: Iterable[str]) -> pa.Table:
        """The rows of many cells in the order given. Texts are kept once until the end."""
        wanted = [self._where[cell] for cell in cells]
        tables, starts, lengths, total = [], {}, {}, 0
        for name in dict.fromkeys(name for name, _ in wanted):
            tables.append(self._read_file("rows", name, texts_once=True))
            starts[name] = total + self._parts[name]["first"].to_numpy()
            lengths[name] = self._parts[name]["rows"].to_numpy()
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

    def _own(self, entry: Entry, kind: Kind) -> pa.Table:
        return self._file(kind, f"{entry.part}.parquet")

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
            counts = table[kind].take(np.fromiter(own.values(), int)).drop_null().to_numpy()
            wanted = int(counts.sum())
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
        counted twice by whoever reads the data set without the index.
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
