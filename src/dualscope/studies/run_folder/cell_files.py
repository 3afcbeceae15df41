"""The files of a cell: whole, its own, and told from damaged ones."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.response_products import parts_of
from dualscope.core.rows import COLUMNS

_INTEGERS = {"init_seed", "seed", "order", "shots", "shots_used", "layer", "head", "step", "n"}
_NUMBERS = {"lr", "value", "low", "high"}
_TRUTHS = {"chat", "balanced"}
_KINDS = ((pa.int64(), _INTEGERS), (pa.float64(), _NUMBERS), (pa.bool_(), _TRUTHS))
CELL = "cell"  # whose a file is, noted in it
SCHEMA = pa.schema([(name, next((kind for kind, names in _KINDS if name in names), pa.string())) for name in COLUMNS])


class Broken(NamedTuple):
    """A stored file that cannot be read back."""

    file: str
    why: str
    damaged: bool
    """Its content is at fault, so that it may be computed again; else the way to it is."""

    def __str__(self) -> str:
        return self.why


FEW_ROWS = 1000


def parquet_bytes(table: pa.Table) -> bytes:
    """A file's content. What dictionaries and zstd cost a column, a small table never gets back: without them it is
    smaller, and read three times as fast.
    """
    small = table.num_rows <= FEW_ROWS
    sink = pa.BufferOutputStream()
    how = {"compression": "snappy" if small else "zstd", "use_dictionary": not small}
    pq.write_table(table, sink, write_page_checksum=True, **how)
    return bytes(sink.getvalue())


def rows_of(data: bytes, cell: str) -> pa.Table:
    """A cell's rows, with the columns that rows have today."""
    return checked_rows(read_cell(data, cell))


def checked_rows(table: pa.Table) -> pa.Table:
    table = table.replace_schema_metadata(None)
    if table.schema.equals(SCHEMA):
        return table
    for field in SCHEMA:
        if field.name not in table.column_names:
            raise pa.ArrowInvalid(f"not a cell's rows: there is no column '{field.name}'")
        if table.schema.field(field.name).type != field.type:
            raise pa.ArrowInvalid(f"not a cell's rows: the column '{field.name}' is no {field.type}")
    return table


def queries_of(data: bytes, cell: str) -> pa.Table:
    """A cell's table of queries, its columns with what they are."""
    table = read_cell(data, cell)
    if "query" not in table.column_names:
        raise pa.ArrowInvalid("not a table of queries: it has no column 'query'")
    return table


def responses_of(data: bytes, cell: str) -> pa.Table:
    """A cell's table of responses, whole and its own."""
    table = read_cell(data, cell)
    parts_of(table)
    return table


def notes_of(schema: pa.Schema) -> dict[str, str]:
    """What is noted in a cell's file."""
    found = {key.decode(errors="replace"): value for key, value in (schema.metadata or {}).items()}
    return {key: value.decode(errors="replace") for key, value in found.items() if key != CELL}


def schema_of(data: bytes) -> pa.Schema:
    return pq.read_schema(pa.BufferReader(data))


def read_cell(data: bytes, cell: str) -> pa.Table:
    """A cell's table, whole and its own. Not by `read_table`, which takes ten times as long for small files."""
    table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(use_threads=False)
    named = (table.schema.metadata or {}).get(CELL.encode(), cell.encode()).decode(errors="replace")
    if named != cell:
        raise pa.ArrowInvalid(f"it is of another cell, {named}")
    return table


def is_damage(error: Exception) -> bool:
    """Whether a file's content is at fault, and not the way to it.

    Arrow's own errors have no number: an input error of a disk, a stale handle or a missing permission has one.
    """
    return not isinstance(error, OSError) or error.errno is None or isinstance(error, FileNotFoundError)
