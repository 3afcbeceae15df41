"""The files of a packed run: what they are called, what is in them, and that they are what they should be.

An index notes the digests of the two files that it is about, and a seal over itself. So no reader takes rows that
another process, a disk or a hand has changed for those that were packed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dualscope.core.canonical import fingerprint
from dualscope.core.untrusted_files import reason
from dualscope.studies.run_folder.cell_files import SCHEMA, is_damage

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
    yield pc.is_valid(array).to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_map(array.type):
        yield np.diff(array.offsets.to_numpy()).tobytes()
        yield from _values(array.keys)
        yield from _values(array.items)
    elif pa.types.is_string(array.type):
        texts = array.fill_null("")
        yield pc.binary_length(texts).to_numpy().tobytes()
        yield pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "")[0].as_py().encode()
    else:
        yield array.fill_null(0).to_numpy(zero_copy_only=False).tobytes()


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
    schemas = asked["schema"].to_numpy()
    if len(schemas) and not 0 <= schemas.min() <= schemas.max() < len(json.loads(about[SCHEMAS])):
        raise pa.ArrowInvalid("an entry's table of queries has a schema that is not noted")


def _check_ranges(first: pa.ChunkedArray, length: pa.ChunkedArray) -> None:
    starts, lengths = first.to_numpy(), length.to_numpy()
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
    codes = coded.indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    lengths = np.diff(starts, append=len(codes))
    names = coded.dictionary.take(pa.array(codes[starts]))
    wanted = entries["cell"].combine_chunks()
    here = pc.is_in(names, wanted).to_numpy(zero_copy_only=False)  # others were discarded since
    if not (
        names.filter(pa.array(here)).equals(wanted)
        and np.array_equal(starts[here], entries[first].to_numpy())
        and np.array_equal(lengths[here], entries[count].to_numpy())
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
