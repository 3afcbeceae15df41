"""The packed part of a run: many cells in a few Parquet files, partitioned by model and task.

    packed/rows/model=M/task=T/00000001.parquet      cells' rows, one cell after the other, with a column `cell`
    packed/queries/model=M/task=T/00000001.parquet   the same cells' tables of queries, each column that any of them has
    packed/index/00000001.parquet                    which cells these two files hold, and where

A part is there once its index is: that file is written last. A cell in two parts counts as the later one says.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.folder import Folder
from dualscope.core.strangers import reason
from dualscope.studies.run_folder.cell_files import SCHEMA, Broken, is_damage, parquet_bytes
from dualscope.studies.run_folder.part_files import (
    ENTRIES,
    INDEX,
    ROWS,
    SCHEMAS,
    Entry,
    Kind,
    as_it_was,
    check_own,
    check_part,
    file_of,
    naming,
    plain,
    read_part,
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

    def next_part(self) -> str:
        last = max((int(Path(name).stem) for name in self.folder.names(INDEX, ".parquet")), default=0)
        return f"{last + 1:08d}"

    def in_order(self, cells: Iterable[str]) -> list[str]:
        """So that cells of one part come together, and no file has to be opened twice; loose ones first."""
        return sorted(cells, key=lambda cell: (*self._where.get(cell, ("", 0)), cell))

    # reading

    def rows(self, cell: str) -> pa.Table:
        entry = self.entry(cell)
        table = self._own(entry, "rows").slice(entry.first, entry.rows)
        check_own(table, entry.rows, cell)
        return table.drop_columns(["cell"])

    def queries(self, cell: str) -> pa.Table:
        """A cell's table of queries as it was, its columns in their order."""
        entry = self.entry(cell)
        if entry.first_query is None or entry.queries is None or entry.schema is None:
            raise FileNotFoundError(2, "No such file or directory", f"queries/{cell}.parquet")
        table = self._own(entry, "queries").slice(entry.first_query, entry.queries)
        check_own(table, entry.queries, cell)
        return as_it_was(table, self._schemas(entry.part)[entry.schema])

    def whole(self, cells: Iterable[str]) -> pa.Table:
        """The rows of many cells in the order given. Texts are kept once until the end."""
        wanted = [self._where[cell] for cell in cells]
        tables, starts, lengths, total = [], {}, {}, 0
        for name in dict.fromkeys(name for name, _ in wanted):
            tables.append(self._read_file("rows", *self._of_part(name), texts_once=True))
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
        pieces = (
            together.take(pa.array(order[at : at + AT_ONCE])) for at in range(0, max(1, len(order)), AT_ONCE)
        )
        return pa.concat_tables(piece.cast(SCHEMA) for piece in pieces)

    def _own(self, entry: Entry, kind: Kind) -> pa.Table:
        return self._file(kind, entry.model, entry.task, entry.part)

    def _of_part(self, name: str) -> tuple[str | None, str | None, str]:
        """Model, task and number of a part: all its cells are of one partition."""
        model, task = (self._parts[name][column][0].as_py() for column in ("model", "task"))
        return model, task, Path(name).stem

    def _read_schemas(self, part: str) -> list[pa.Schema]:
        noted = self._parts[f"{part}.parquet"].schema.metadata[SCHEMAS.encode()]
        return [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in json.loads(noted)]

    def _read_index(self, file: str) -> pa.Table:
        table = read_part(self.folder.read(file), Path(file).stem)
        if not table.schema.equals(ENTRIES) or SCHEMAS.encode() not in table.schema.metadata:
            raise pa.ArrowInvalid("not an index of packed cells")
        return table

    def _read_file(
        self, kind: Kind, model: str | None, task: str | None, part: str, texts_once: bool = False
    ) -> pa.Table:
        file = file_of(kind, model, task, part)
        once = [field.name for field in ROWS if field.type == pa.string()] if texts_once else []
        with naming(file):
            table = read_part(self.folder.read(file), part, once)
        wanted = {"rows": ROWS, "queries": pa.schema([ROWS.field("cell")])}[kind]
        kinds = {field.name: plain(field.type) for field in table.schema}
        if any(kinds.get(field.name) != field.type for field in wanted):
            raise pa.ArrowInvalid(f"{file}: not packed {kind}")
        return table

    def file(self, kind: Kind, cell: str) -> str:
        """The file that holds a cell's rows or queries."""
        entry = self.entry(cell)
        return file_of(kind, entry.model, entry.task, entry.part)

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
            own = {
                cell: at for at, cell in enumerate(every) if self._where[cell] == (name, at) and cell in cells
            }
            counts = table[kind].take(np.fromiter(own.values(), int)).drop_null().to_numpy()
            wanted = int(counts.sum())
            if not wanted:
                continue
            place = self._of_part(name)
            file = file_of(kind, *place)
            with naming(file), self.folder.stream(file) as stream:
                parquet = pq.ParquetFile(stream)
                check_part(parquet.schema_arrow, Path(name).stem)
                if parquet.metadata.num_rows == wanted:
                    alike.setdefault(parquet.schema_arrow.remove_metadata(), []).append(file)
                    continue
            whole = self._file(kind, *place)
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
        silent = {name for name in self.folder.names(INDEX, ".parquet") if not self._cells_of(name)}
        parts = [self._of_part(name) for name in self._parts if self._cells_of(name)]
        kinds: tuple[Kind, ...] = ("rows", "queries")
        known = {file_of(kind, *part) for part in parts for kind in kinds}
        for place in {str(Path(file_of(kind, *one, "")).parent) for one in partitions for kind in kinds}:
            for name in self.folder.names(place, ".parquet"):
                if name not in silent and f"{place}/{name}" not in known:
                    self.folder.remove(f"{place}/{name}")

    def _cells_of(self, name: str) -> int:
        return self._parts[name].num_rows if name in self._parts else 0

    def discard(self, cells: Iterable[str]) -> None:
        """Leave cells out of the index, so that they are computed again."""
        gone = [self._where[cell] for cell in cells if cell in self._where]
        parts = dict(self._parts)
        for name in {name for name, _ in gone}:
            table = parts[name]
            drop = [at for other, at in gone if other == name]
            kept = table.take(np.setdiff1d(np.arange(table.num_rows), drop))
            self.folder.write(
                f"{INDEX}/{name}", parquet_bytes(kept.replace_schema_metadata(table.schema.metadata))
            )
            parts[name] = kept
        self._take(parts)

    def discard_broken(self) -> Iterator[Broken]:
        """Remove index files whose content is damaged: their cells are then not there."""
        for file, broken in list(self.broken.items()):
            if broken.damaged:
                self.folder.remove(file)
                del self.broken[file]
                yield broken
