"""The files of a packed run: what they are called, what is in them, and that they are what they should be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from dualscope.core.canonical import fingerprint
from dualscope.core.strangers import reason
from dualscope.studies.run_folder.cell_files import SCHEMA, is_damage

INDEX = "packed/index"
PART, SCHEMAS = "part", "schemas"  # noted in the files: which part they are of; how tables of queries look
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
    """As Hive has it; the columns in the files say the same, so that nobody has to read it back."""
    if not value:
        return "__HIVE_DEFAULT_PARTITION__"
    name = quote(value, safe="")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{fingerprint(value)[:8]}"


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Whatever is wrong with a part is said with its name. One that is missing is damage, not a way that is blocked."""
    try:
        yield
    except FileNotFoundError:
        raise pa.ArrowInvalid(f"{file} is missing") from None
    except (OSError, pa.ArrowException) as error:
        if is_damage(error):
            raise pa.ArrowInvalid(f"{file}: {reason(error)}") from error
        raise OSError(getattr(error, "errno", None), f"{file}: {reason(error)}") from error


def as_it_was(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A cell's part of a wider table, with the columns and types that it had."""
    columns = [
        pa.nulls(table.num_rows) if pa.types.is_null(field.type) else table[field.name] for field in schema
    ]
    return pa.table(columns, schema=schema)


def read_part(data: bytes, part: str, texts_once: Iterable[str] = ()) -> pa.Table:
    file = pq.ParquetFile(
        pa.BufferReader(data), page_checksum_verification=True, read_dictionary=list(texts_once)
    )
    check_part(file.schema_arrow, part)
    # Not by Arrow's threads: one that still holds our bytes when the process ends aborts it, or keeps it from ending.
    return file.read(use_threads=False).combine_chunks()


def check_part(schema: pa.Schema, part: str) -> None:
    named = (schema.metadata or {}).get(PART.encode(), b"").decode(errors="replace")
    if named != part:
        raise pa.ArrowInvalid(f"it is of another part, {named}" if named else "it is no part of a packed run")


def check_own(table: pa.Table, length: int, cell: str) -> None:
    if table.num_rows != length or (length and table["cell"][0].as_py() != cell):
        raise pa.ArrowInvalid("the index and the part do not fit")


def plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
