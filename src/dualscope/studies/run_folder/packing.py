"""Packing a run: from two files a cell to three files a few thousand cells.

At every moment a cell is loose, or packed, or both: a part has its index before the loose files that it holds are
removed. So a kill loses nothing, and the same command goes on.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.errors import InputError
from dualscope.core.strangers import reason
from dualscope.studies.run_folder.cell_files import (
    checked_rows,
    notes_of,
    parquet_bytes,
    queries_of,
    read_cell,
)
from dualscope.studies.run_folder.cells import WITHOUT_QUERIES
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.part_files import ENTRIES, INDEX, PART, ROWS, SCHEMAS, file_of
from dualscope.studies.run_folder.storage import RunFolder

CELLS_A_PART = 5000
BYTES_A_PART = 32 * 2**20  # of Arrow tables
LEFT = ("cells", "queries", "traces", "packed", "claims", "aside", "failures", "downloads")
"""Parts of a run folder that are not copied: what is packed, what is large, what is somebody's work."""
Partition = tuple[str | None, str | None]  # model, task


@dataclass
class Packed:
    """How a packing went."""

    cells: int = 0
    parts: int = 0
    there: int = 0  # cells that were packed before
    left: dict[str, str] = field(default_factory=dict)  # cells that cannot be read, and why


@dataclass(frozen=True)
class _Member:
    cell: str
    rows: pa.Table
    queries: pa.Table | None
    facts: dict[str, Any]

    @property
    def size(self) -> int:
        return int(self.rows.nbytes + (0 if self.queries is None else self.queries.nbytes))


def pack(
    run: RunFolder, target: RunFolder, tell: Callable[[int, int], None] = lambda _done, _total: None
) -> Packed:
    """Pack a run where it is (``target`` is the same), or into another place, which is then a run by itself."""
    in_place = str(target.folder) == str(run.folder)
    if not in_place:
        _check_free(run, target)
    with Claims(target.folder) as claims:
        if not claims.take("pack"):
            raise InputError(f"{target.folder}: is being packed already, by {claims.holder('pack')}")
        result = _pack_all(run, target, in_place, tell)
        if not in_place:
            for name in run.folder.files():
                if name.partition("/")[0] not in LEFT:
                    target.folder.write(name, run.folder.read(name))
    target.folder.sweep(stale=float("inf"))
    return result


def _check_free(run: RunFolder, target: RunFolder) -> None:
    theirs = target.folder.read("study.yaml") if target.folder.exists("study.yaml") else None
    if theirs is not None and theirs != run.folder.read("study.yaml"):
        raise InputError(f"--out {target.folder}: holds another study; give a place that is empty")
    strange = target.stored() - run.stored()
    if strange:
        raise InputError(
            f"--out {target.folder}: holds {len(strange)} cells that {run.folder} has not; give a place that is empty"
        )


def _pack_all(run: RunFolder, target: RunFolder, in_place: bool, tell: Callable[[int, int], None]) -> Packed:
    result = Packed()
    wanted = run.loose() if in_place else run.stored()
    partitions: dict[Partition, list[str]] = {}
    for cell in run.pack.in_order(wanted):
        try:
            partitions.setdefault(_partition(run, cell), []).append(cell)
        except (OSError, pa.ArrowException) as error:
            result.left[cell] = reason(error)
    target.pack.clear_halves(partitions)
    done = len(result.left)
    for partition in sorted(partitions, key=lambda one: tuple(text or "" for text in one)):
        waiting: list[_Member] = []
        size = 0
        for cell in partitions[partition]:
            done += 1
            try:
                member = _member(run, cell)
            except (OSError, pa.ArrowException) as error:
                result.left[cell] = reason(error)
                continue
            if _is_there(target, member):
                result.there += 1
                if in_place:
                    run.remove_loose([cell])
                continue
            waiting.append(member)
            size += member.size
            if len(waiting) == CELLS_A_PART or size > BYTES_A_PART:
                _flush(target, in_place, partition, waiting, result)
                waiting, size = [], 0
                tell(done, len(wanted))
        _flush(target, in_place, partition, waiting, result)
        tell(done, len(wanted))
    return result


def _partition(run: RunFolder, cell: str) -> Partition:
    try:
        data = run.folder.read(f"cells/{cell}.parquet")
    except FileNotFoundError:
        entry = run.known.entry(cell)
        return entry.model, entry.task
    some = pq.ParquetFile(pa.BufferReader(data)).read(columns=["model", "task"], use_threads=False)
    first = some.slice(0, 1).to_pylist()
    return (first[0]["model"], first[0]["task"]) if first else (None, None)


def _member(run: RunFolder, cell: str) -> _Member:
    """A cell with all that is to be known of it. A loose one's files are read once."""
    pack = run.known
    entry = pack.entry(cell) if cell in pack else None
    rows, queries = (_loose(run, f"{part}/{cell}.parquet") for part in ("cells", "queries"))
    if rows is not None:
        table = read_cell(rows, cell)
        notes, own, written = notes_of(table.schema), checked_rows(table), run.written(cell)
        digest = hashlib.sha256(rows).hexdigest()
    elif entry is not None:
        notes, own, written, digest = entry.notes, pack.rows(cell), entry.written, entry.rows_sha256
    else:
        raise FileNotFoundError(2, "No such file or directory", f"cells/{cell}.parquet")
    facts = {"written": written, "notes": list(notes.items()), "rows_sha256": digest, "queries_sha256": None}
    asked = None
    if queries is not None:
        asked = queries_of(queries, cell)
        facts["queries_sha256"] = hashlib.sha256(queries).hexdigest()
    elif WITHOUT_QUERIES not in notes:  # packed, or gone
        asked = run.read_queries(cell)
        facts["queries_sha256"] = entry and entry.queries_sha256
    if asked is not None and "cell" in asked.column_names:
        raise pa.ArrowInvalid("a column of its queries is called 'cell', which packing needs for itself")
    return _Member(cell, own, asked, facts)


def _loose(run: RunFolder, name: str) -> bytes | None:
    try:
        return run.folder.read(name)
    except FileNotFoundError:
        return None


def _is_there(target: RunFolder, member: _Member) -> bool:
    """Packed before, and the same."""
    if member.cell not in target.known:
        return False
    entry = target.known.entry(member.cell)
    return all(getattr(entry, name) == member.facts[name] for name in ("rows_sha256", "queries_sha256"))


def _flush(
    target: RunFolder, in_place: bool, partition: Partition, members: list[_Member], result: Packed
) -> None:
    for alike in _alike(members):
        _write_part(target, partition, alike)
        result.cells, result.parts = result.cells + len(alike), result.parts + 1
        if in_place:
            target.remove_loose([member.cell for member in alike])


def _alike(members: Iterable[_Member]) -> list[list[_Member]]:
    """Such as can be in one table: a column that two plugins fill with different types cannot."""
    by_schema: dict[pa.Schema, list[_Member]] = {}
    for member in members:
        own = pa.schema([]) if member.queries is None else _bare(member.queries.schema)
        by_schema.setdefault(own, []).append(member)
    groups: list[tuple[pa.Schema, list[_Member]]] = []
    for own, found in by_schema.items():
        for i, (schema, others) in enumerate(groups):
            try:
                groups[i] = (pa.unify_schemas([schema, own]), others + found)
                break
            except pa.ArrowException:
                continue
        else:
            groups.append((own, found))
    return [found for _, found in groups]


def _bare(schema: pa.Schema) -> pa.Schema:
    return pa.schema([one.remove_metadata() for one in schema])


def _write_part(target: RunFolder, partition: Partition, members: list[_Member]) -> None:
    part, about = target.pack.next_part(), {}
    schemas: dict[bytes, int] = {}
    entries, first, first_query = [], 0, 0
    rows, queries = [], []
    for member in members:
        rows.append(_with_cell(member.rows, member.cell))
        entry = {
            **member.facts,
            **dict(zip(("model", "task"), partition, strict=True)),
            "cell": member.cell,
            "first": first,
            "rows": member.rows.num_rows,
        }
        first += member.rows.num_rows
        if member.queries is not None:
            table = member.queries
            schema = table.schema.remove_metadata().serialize().to_pybytes()
            queries.append(_with_cell(table.cast(_bare(table.schema)), member.cell))
            entry |= {"first_query": first_query, "queries": table.num_rows}
            entry["schema"] = schemas.setdefault(schema, len(schemas))
            first_query += table.num_rows
        entries.append(entry)
    about = {PART: part, SCHEMAS: json.dumps([base64.b64encode(one).decode() for one in schemas])}
    if queries:
        together = pa.concat_tables(queries, promote_options="default")
        _write(target, file_of("queries", *partition, part), together, {PART: part})
    _write(target, file_of("rows", *partition, part), pa.concat_tables(rows).cast(ROWS), {PART: part})
    _write(target, f"{INDEX}/{part}.parquet", pa.Table.from_pylist(entries, schema=ENTRIES), about)
    target.pack.refresh()


def _write(target: RunFolder, name: str, table: pa.Table, about: dict[str, str]) -> None:
    target.folder.write(name, parquet_bytes(table.replace_schema_metadata(about)))


def _with_cell(table: pa.Table, cell: str) -> pa.Table:
    return table.replace_schema_metadata(None).add_column(
        0, "cell", pa.repeat(pa.scalar(cell), table.num_rows)
    )
