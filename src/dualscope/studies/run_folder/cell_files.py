"""The files of a cell: whole, its own, and told from damaged ones."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.rows import COLUMNS

_INTEGERS = {"init_seed", "seed", "order", "shots", "shots_used", "layer", "head", "step", "n"}
_NUMBERS = {"lr", "value", "low", "high"}
CELL = "cell"  # whose a file is, noted in it
SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _INTEGERS else pa.float64() if name in _NUMBERS else pa.string())
        for name in COLUMNS
    ]
)


class Broken(NamedTuple):
    """A stored file that cannot be read back."""

    file: str
    why: str
    damaged: bool
    """Its content is at fault, so that it may be computed again; else the way to it is."""

    def __str__(self) -> str:
        return self.why


def parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


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
