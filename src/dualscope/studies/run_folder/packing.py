"""Packing a run: from two files a cell to three files a few thousand cells.

At every moment a cell is loose, or packed, or both: a part has its index, and has been read back from the disk, before
the loose files that it holds are removed. So a kill loses nothing, and the same command goes on.

The claim on packing is a lease, so a process that stood still may wake up beside another. The numbers of parts fence it
off: a process counts on from the last number that it saw when it had its claim, and creates each index exclusively.
Where another process has packed since, the number is taken, nothing is published and nothing is deleted.

A packed run has a card: a README.md beside the parts, with the head by which data set viewers find them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dualscope._version import __version__
from dualscope.core.config_file import parsed_yaml
from dualscope.core.errors import InputError
from dualscope.core.rows import COLUMNS
from dualscope.core.untrusted_files import reading, reason
from dualscope.studies.run_folder.cell_files import checked_rows, notes_of, parquet_bytes, queries_of, read_cell
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.packed_cells import (
    CELL_ID,
    DATA,
    DIGESTS,
    ENTRIES,
    PART,
    ROWS,
    SCHEMAS,
    Kind,
    file_of,
)
from dualscope.studies.run_folder.storage import WITHOUT_QUERIES, RunFolder

CELLS_A_PART = 5000
BYTES_A_PART = 32 * 2**20  # of Arrow tables
LEFT = ("cells", "queries", "traces", "packed", "claims", "aside", "failures", "downloads")
"""Parts of a run folder that are not copied: what is packed, what is large, what another process works on."""
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
    stamps: tuple[object, object]  # of its own files of queries and rows, before they were read
    size: int  # bytes in memory


def pack(run: RunFolder, target: RunFolder, tell: Callable[[int, int], None] = lambda _done, _total: None) -> Packed:
    """Pack a run where it is (``target`` is the same), or into another place, which is then a run by itself."""
    in_place = str(target.folder) == str(run.folder)
    if not in_place:
        _check_free(run, target)
    with Claims(target.folder) as claims:
        if not claims.take("pack"):
            raise InputError(f"{target.folder}: is being packed already, by {claims.holder('pack')}")
        result = _Packing(run, target, claims).pack_all(tell)
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


class _Packing:
    """One packing of one process, from its claim on."""

    def __init__(self, run: RunFolder, target: RunFolder, claims: Claims) -> None:
        self.run, self.target, self.claims = run, target, claims
        self.in_place = str(target.folder) == str(run.folder)
        self.number = target.pack.last_number()
        """The last part that we know of: no other process may have published another when we do."""
        self.result = Packed()

    def pack_all(self, tell: Callable[[int, int], None]) -> Packed:
        run, result = self.run, self.result
        wanted = run.loose() if self.in_place else run.stored()
        partitions: dict[Partition, list[str]] = {}
        for cell in run.pack.in_order(wanted):
            try:
                partitions.setdefault(_partition(run, cell), []).append(cell)
            except (OSError, pa.ArrowException) as error:
                result.left[cell] = reason(error)
        self.target.pack.clear_halves(partitions)
        done = len(result.left)
        for partition in sorted(partitions, key=lambda one: tuple(text or "" for text in one)):
            waiting: list[_Member] = []
            size = 0
            for cell in partitions[partition]:
                done += 1
                try:
                    member = _member(run, cell, partition)
                except (OSError, pa.ArrowException) as error:
                    result.left[cell] = reason(error)
                    continue
                if self._was_there(member):
                    result.there += 1
                    self._remove_loose([member])
                    continue
                waiting.append(member)
                size += member.size
                if len(waiting) == CELLS_A_PART or size > BYTES_A_PART:
                    self._flush(partition, waiting)
                    waiting, size = [], 0
                    tell(done, len(wanted))
            self._flush(partition, waiting)
            tell(done, len(wanted))
        return result

    def _was_there(self, member: _Member) -> bool:
        """Packed before; a part that is damaged holds nothing, and the cell is packed again."""
        try:
            return _is_there(self.target, member)
        except (OSError, pa.ArrowException):
            return False

    def _flush(self, partition: Partition, members: list[_Member]) -> None:
        for alike in _alike(members):
            self._publish(partition, alike)
            self.result.cells, self.result.parts = self.result.cells + len(alike), self.result.parts + 1
            self._remove_loose(alike)

    def _publish(self, partition: Partition, members: list[_Member]) -> None:
        """Write a part, create its index, and read both back: only then are its cells packed."""
        target, number = self.target, self.number + 1
        data = f"{number:08d}-{uuid.uuid4().hex[:8]}"
        tables, entries, about, files = _part(partition, members, data)
        for file, content in files.items():
            target.folder.write(file, content)
        if not (self.claims.holds("pack") and target.pack.publish(number, entries, about)):
            for file in files:
                target.folder.remove(file)
            raise InputError(
                f"{target.folder}: another process has packed it while this one stood still; nothing is lost: "
                "give the same command again"
            )
        self.number = number
        try:
            for kind, table in tables.items():
                if not _same(target.pack.part(kind, number), table):
                    raise pa.ArrowInvalid("it is not what was written")
        except (OSError, pa.ArrowException) as error:
            target.pack.withdraw(number)
            raise InputError(
                f"{target.folder}: a part that was just written cannot be read back ({reason(error)}); "
                "nothing was deleted: look at the disk, and give the same command again"
            ) from error

    def _remove_loose(self, members: Iterable[_Member]) -> None:
        """Of packed cells, the files of their own; not where another has been stored since we read it."""
        if not self.in_place:
            return
        for member in members:
            names = [f"{part}/{member.cell}.parquet" for part in ("queries", "cells")]
            if all(self.run.folder.stamp(name) == stamp for name, stamp in zip(names, member.stamps, strict=True)):
                self.run.remove_loose([member.cell])


def _partition(run: RunFolder, cell: str) -> Partition:
    try:
        data = run.folder.read(f"cells/{cell}.parquet")
    except FileNotFoundError:
        entry = run.known.entry(cell)
        return entry.model, entry.task
    # The notes of the file name the least and the greatest value of each column: with one value there is no need to
    # unpack it, which would be a tenth of all that packing does. `_member` looks whether it is so.
    about = pq.read_metadata(pa.BufferReader(data))
    model, task = (_only_value(about, name) for name in ("model", "task"))
    if model is not None and task is not None:
        return model, task
    some = pq.ParquetFile(pa.BufferReader(data)).read(columns=["model", "task"], use_threads=False)
    return _first(some)


def _first(rows: pa.Table) -> Partition:
    """The model and task of a cell's rows, which all have the same."""
    if rows.num_rows == 0:
        return None, None
    return rows["model"][0].as_py(), rows["task"][0].as_py()


def _only_value(about: pq.FileMetaData, name: str) -> str | None:
    """The one value that a column of texts has, if it is known to have one."""
    if about.num_row_groups != 1:
        return None
    at = COLUMNS.index(name)
    column = about.row_group(0).column(at) if at < about.num_columns else None
    if column is None or column.path_in_schema != name or not column.is_stats_set:
        return None
    found = column.statistics
    alone = found.has_min_max and found.null_count == 0 and found.min == found.max
    return str(found.min) if alone else None


def _member(run: RunFolder, cell: str, partition: Partition) -> _Member:
    """A cell with all that is to be known of it. A loose one's files are read once."""
    if not CELL_ID.fullmatch(cell):
        raise pa.ArrowInvalid("its name is no cell's")
    pack = run.known
    entry = pack.entry(cell) if cell in pack else None
    stamps = (run.folder.stamp(f"queries/{cell}.parquet"), run.folder.stamp(f"cells/{cell}.parquet"))
    rows, queries = (_loose(run, f"{part}/{cell}.parquet") for part in ("cells", "queries"))
    if rows is not None:
        table = read_cell(rows, cell)
        notes, own, written = notes_of(table.schema), checked_rows(table), run.written(cell)
        digest, size = hashlib.sha256(rows).hexdigest(), own.get_total_buffer_size()
        if _first(own) != partition:
            raise pa.ArrowInvalid("its rows are of another model or task than the notes of its file say")
    elif entry is not None:
        notes, own, written, digest = entry.notes, pack.rows(cell), entry.written, entry.rows_sha256
        size = own.nbytes  # of its slice of a part
    else:
        raise FileNotFoundError(2, "No such file or directory", f"cells/{cell}.parquet")
    facts = {"written": written, "notes": list(notes.items()), "rows_sha256": digest, "queries_sha256": None}
    asked = None
    if queries is not None:
        asked = queries_of(queries, cell)
        size += asked.get_total_buffer_size()
        facts["queries_sha256"] = hashlib.sha256(queries).hexdigest()
    elif WITHOUT_QUERIES not in notes:  # packed, or gone
        asked = run.read_queries(cell)
        size += asked.nbytes
        facts["queries_sha256"] = entry and entry.queries_sha256
    if asked is not None and "cell" in asked.column_names:
        raise pa.ArrowInvalid("a column of its queries is called 'cell', which packing needs for itself")
    return _Member(cell, own, asked, facts, stamps, size)


def _loose(run: RunFolder, name: str) -> bytes | None:
    try:
        return run.folder.read(name)
    except FileNotFoundError:
        return None


def _is_there(target: RunFolder, member: _Member) -> bool:
    """Packed before, and the same, as it is on the disk."""
    pack = target.known
    if member.cell not in pack:
        return False
    entry = pack.entry(member.cell)
    if any(getattr(entry, name) != member.facts[name] for name in ("rows_sha256", "queries_sha256")):
        return False
    if not _same(pack.rows(member.cell), member.rows):
        return False
    if member.queries is None:
        return entry.queries is None
    return entry.queries is not None and _same(pack.queries(member.cell), member.queries)


def _same(packed: pa.Table, table: pa.Table) -> bool:
    """Whether two tables have the same values. NaN is unlike itself to Arrow, and alike in writing."""
    if packed.column_names != table.column_names or packed.schema.types != table.schema.types:
        return False
    pairs = zip(packed.columns, table.columns, strict=True)
    return all(one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist()) for one, other in pairs)


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


def _part(
    partition: Partition, members: list[_Member], data: str
) -> tuple[dict[Kind, pa.Table], pa.Table, dict[str, str], dict[str, bytes]]:
    """A part's rows and queries, the entries of its index, what is noted in that, and the files."""
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
    tables: dict[Kind, pa.Table] = {}
    if queries:
        tables["queries"] = pa.concat_tables(queries, promote_options="default")
    tables["rows"] = pa.concat_tables(rows).cast(ROWS)
    contents = {kind: parquet_bytes(table.replace_schema_metadata({PART: data})) for kind, table in tables.items()}
    about = {
        DATA: data,
        SCHEMAS: json.dumps([base64.b64encode(one).decode() for one in schemas]),
        DIGESTS: json.dumps({kind: hashlib.sha256(content).hexdigest() for kind, content in contents.items()}),
    }
    files = {file_of(kind, *partition, data): content for kind, content in contents.items()}
    return tables, pa.Table.from_pylist(entries, schema=ENTRIES), about, files


def _with_cell(table: pa.Table, cell: str) -> pa.Table:
    return table.replace_schema_metadata(None).add_column(0, "cell", pa.repeat(pa.scalar(cell), table.num_rows))


FILE = "packed/README.md"
CARD = """\
---
{head}---

# A run of dualscope

Is in-context learning gradient descent? These are {cells} of one study, packed by dualscope {version}. A cell is one
model, task, draw of demonstrations and learner. `rows/` has every number, `queries/` what each query gave; both are
partitioned by model and task, and `index/` says which part holds which cell.

## What was measured

| field of the study | value |
|---|---|
{study}

## Columns

| columns | meaning |
|---|---|
| `cell` | an id: a hash of all that determines the cell's numbers |
| `model`, `variant`, `init_seed`, `dtype` | which model; trained, or with weights drawn anew; the precision |
| `task`, `seed`, `order`, `shots`, `shots_used`, `demo_labels` | which demonstrations, and their labels |
| `corrupt`, `balanced`, `gd_demonstrations`, `gd_order` | what differs between the prompt and descent |
| `queries_from`, `subset`, `read_at`, `chat` | which queries, where they were read, and whether as a conversation |
| `learner`, `control`, `role`, `family`, `lr`, `options` | who learned; `gd/random-labels` is `gd` under a control |
| `intervention`, `level` | what was changed in the demonstrations from draw to draw; empty: nothing |
| `metric`, `reference`, `layer`, `head`, `step` | which number; `layer` is empty for the mean over layers |
| `value`, `low`, `high`, `n` | the number, its interval over queries where it has one, and of how many it is the mean |

## How to read it

```python
from dualscope import Run

run = Run.open("..")  # the folder that holds packed/
run.table(metric="sim_aou", layer=None).to_pandas()
```

Without dualscope: `duckdb.sql("select * from 'rows/*/*/*.parquet'")`. Group by `learner` and `variant`, keep one
`layer`, and do not average over `intervention`.

## What it does not say

An answer about these models is none about others. Seeds draw demonstrations; the queries are the same in all of them.
The texts belong to the data sets named above, and their licences hold.
"""
REPEATED = ("models", "variants", "tasks", "shots", "demo_labels", "seeds", "queries", "learners", "interventions")
"""Fields of the study that the card repeats."""


def write_card(run: RunFolder) -> str:
    """Describe the packed run of this folder; returns the card's place in it."""
    study: Mapping[str, Any] = {}
    if run.folder.exists("study.yaml"):
        with reading(f"{run.folder}/study.yaml"):
            study, _ = parsed_yaml(run.folder.read("study.yaml").decode(), f"{run.folder}/study.yaml")
    text = card_of(study, len(run.stored()))
    run.folder.write(FILE, text.encode("utf-8"))
    return FILE


def card_of(study: Mapping[str, Any], cells: int) -> str:
    """The whole text.

    >>> [line for line in card_of({"tasks": ["sst2"], "seeds": 5}, 40).splitlines() if "`seeds`" in line]
    ['| `seeds` | `5` |']
    """
    parts = {kind: f"{kind}/*/*/*.parquet" for kind in ("rows", "queries")}
    configs = [{"config_name": kind, "data_files": files} for kind, files in parts.items()]
    head = {"pretty_name": "A run of dualscope", "tags": ["dualscope", "in-context-learning"], "configs": configs}
    lines = [f"| `{name}` | {_listed(study[name])} |" for name in REPEATED if study.get(name) not in (None, [])]
    return CARD.format(
        head=yaml.safe_dump(head, sort_keys=False),
        cells=f"{cells:,} cell{'' if cells == 1 else 's'}",
        version=__version__,
        study="\n".join(lines),
    )


def _listed(value: Any) -> str:
    """A field in one cell of a table, as code; signs that would end the code or the cell are replaced.

    >>> _listed([{"learner": "lcgd", "control": None, "options": {"depth": 2}}, "/home/me/a|b"])
    '`lcgd {"depth": 2}`, `a∣b`'
    """
    texts = (_named(part) for part in (value if isinstance(value, list) else [value]))
    return ", ".join(f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', '∣')}`" for text in texts)


def _named(part: Any) -> str:
    """What a reader knows it by; of a file on this machine its name alone."""
    if isinstance(part, dict):
        name = next((part[key] for key in ("task", "learner", "kind") if part.get(key)), "")
        control = f"/{part['control']}" if part.get("control") else ""
        return f"{_named(name)}{control} {json.dumps(part['options']) if part.get('options') else ''}".strip()
    text = str(part)
    return Path(text).name if text.startswith(("/", "./", "../", "~")) else text
