"""A split of gigabytes: read once as a stream, kept as an Arrow file that every process maps, drawn from by row.

Of a row the template's fields and the label are kept, in the user's cache; memory holds what is drawn.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualscope.core.errors import InputError
from dualscope.core.folder import Folder
from dualscope.tasks.mapping import Example, to_example, to_label
from dualscope.tasks.sources import iterate
from dualscope.tasks.task_config import TaskConfig

ROWS = 2**16  # at a time
BLOCK = 2**24  # bytes at a time
KEPT = 30 * 86400.0  # seconds that a split is kept after its last use
LABEL = "label"


class LargeSplit(Sequence[Example]):
    """Examples by row; each is made when it is asked for."""

    def __init__(self, path: Path, split: str, digest: str) -> None:
        self.split, self.digest = split, digest
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self._fields = [name for name in self._table.column_names if name != LABEL]

    @classmethod
    def of(cls, file: Path, config: TaskConfig, split: str, where: str) -> LargeSplit:
        """The split in a file, from the cache where the file and what is read of it are as they were."""
        state = file.stat()
        times = [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
        mapping = config.model_dump(mode="json", include={"fields", "label", "label_values", "labels", "template"})
        key = hashlib.sha256(json.dumps([str(file.resolve()), times, mapping]).encode()).hexdigest()[:32]
        rows, digest = f"{key}.arrow", f"{key}.digest"
        found: list[str] = []
        for folder in _caches():
            try:
                if not folder.exists(digest) or not folder.exists(rows):
                    _forget_unused(folder)
                    folder.write_by(rows, lambda path: found.append(_convert(file, config, split, where, path)))
                    folder.write(digest, found[-1].encode())
                    folder.sweep(3600.0)
                for name in (rows, digest):
                    folder.touch(name)
                return cls(Path(folder.path(rows)), split, folder.read(digest).decode())
            except (OSError, pa.ArrowInvalid) as error:  # no room, or not ours to write: the next place
                failed = error
        raise InputError(f"{file}: there is no room for its rows beside memory ({failed}); free some disk space")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Example, ...]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        number = range(len(self))[int(index)]
        fields = {name: self._table[name][number].as_py() for name in self._fields}
        return Example(f"{self.split}:{number}", fields, self._table[LABEL][number].as_py())

    @cached_property
    def labels(self) -> np.ndarray:
        """Every example's label, [examples]."""
        return np.asarray(self._table[LABEL].to_numpy())


def _caches() -> list[Folder]:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Folder(Path(place) / "dualscope" / "splits") for place in (home, tempfile.gettempdir())]


def _forget_unused(folder: Folder) -> None:
    for name in folder.names(""):
        if name.endswith((".arrow", ".digest")) and time.time() - folder.written(name) > KEPT:
            folder.remove(name)


def _convert(file: Path, config: TaskConfig, split: str, where: str, path: Path) -> str:
    """Write the split as an Arrow file; returns its digest.

    A row that is not as it should be is an `InputError` that names it.
    """
    try:
        return _write(_fast(file, config), config, path)
    except (_Irregular, pa.ArrowException):  # row by row: slower, and says which row and why
        return _write(_slow(file, config, split, where), config, path)


class _Irregular(Exception):
    """Something that only a look at the single row can judge."""


def _write(batches: Iterator[pa.RecordBatch], config: TaskConfig, path: Path) -> str:
    schema = pa.schema([*((name, pa.large_string()) for name in config.field_names), (LABEL, pa.int64())])
    parts = {name: (hashlib.sha256(), hashlib.sha256()) for name in schema.names}
    rows = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as sink:
        for batch in batches:
            rows += batch.num_rows
            for name in schema.names:
                _hash(batch[name], *parts[name])
            sink.write_batch(batch)
    if not rows:
        raise _Irregular
    digests = [[name, *(part.hexdigest() for part in parts[name])] for name in schema.names]
    return hashlib.sha256(json.dumps([rows, digests]).encode()).hexdigest()


def _hash(column: pa.Array, lengths: Any, content: Any) -> None:
    """Lengths and contents apart, so that it does not matter how the rows were cut into batches."""
    if pa.types.is_integer(column.type):
        content.update(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).tobytes())
        return
    column = pa.concat_arrays([column])  # from its own beginning
    lengths.update(pc.binary_length(column).cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    content.update(memoryview(data or b"")[ends[0] : ends[-1]])


def _fast(file: Path, config: TaskConfig) -> Iterator[pa.RecordBatch]:
    """By whole columns, where every row has the columns of the first ones and nothing is missing."""
    chosen: dict[str, str] | None = None
    indices: dict[Any, int | None] = {}
    for batch in _columns(file, config):
        if chosen is None:
            chosen = {name: _first(config.columns(name), batch) for name in config.field_names}
            chosen[LABEL] = _first(config.label, batch)
        arrays = [_texts(batch[chosen[name]]) for name in config.field_names]
        encoded = batch[chosen[LABEL]].dictionary_encode()
        known = encoded.dictionary.to_pylist()
        indices.update({value: to_label(value, config) for value in known if value not in indices})
        numbers = [indices[value] for value in known]
        if encoded.null_count or None in numbers:
            raise _Irregular
        labels = pa.array(numbers, pa.int64()).take(encoded.indices)
        yield pa.record_batch([*arrays, labels], names=[*config.field_names, LABEL])


def _first(columns: tuple[str, ...], batch: pa.RecordBatch) -> str:
    found = next((name for name in columns if name in batch.schema.names), None)
    if found is None:
        raise _Irregular
    return found


def _texts(column: pa.Array) -> pa.Array:
    if column.null_count:
        raise _Irregular
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_integer(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_floating(column.type):
        return pa.array([str(value) for value in column.to_pylist()], pa.large_string())
    raise _Irregular


def _columns(file: Path, config: TaskConfig) -> Iterator[pa.RecordBatch]:
    """Batches of a file, of the columns that matter; formats that Arrow reads as we do."""
    wanted = [*(column for name in config.field_names for column in config.columns(name)), *config.label]
    if file.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        source = pq.ParquetFile(file, memory_map=True)
        there = [name for name in dict.fromkeys(wanted) if name in source.schema_arrow.names]
        yield from source.iter_batches(batch_size=ROWS, columns=there)
    elif file.suffix.lower() == ".jsonl":
        import pyarrow.json as pj

        schema = _schema(file, wanted)
        parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        yield from pj.open_json(file, read_options=pj.ReadOptions(block_size=BLOCK), parse_options=parse)
    else:
        raise _Irregular


def _schema(file: Path, wanted: Sequence[str]) -> pa.Schema:
    """The types of a jsonl file's columns, as its first rows have them."""
    kinds: dict[str, pa.DataType] = {}
    for _, row in zip(range(100), iterate(file), strict=False):
        for name in wanted:
            if name in row and (kind := TYPES.get(type(row[name]))) is not None:
                kinds.setdefault(name, kind)
    return pa.schema(list(kinds.items()))


TYPES = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _slow(file: Path, config: TaskConfig, split: str, where: str) -> Iterator[pa.RecordBatch]:
    columns: list[list[Any]] = [[] for _ in (*config.field_names, LABEL)]

    def batch() -> pa.RecordBatch:
        kinds = [*(pa.large_string() for _ in config.field_names), pa.int64()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        for column in columns:
            column.clear()
        return pa.record_batch(arrays, names=[*config.field_names, LABEL])

    if config.on_bad_rows == "skip":
        raise InputError(f"task '{config.name}': on_bad_rows: skip is for files of up to 64 MB; mend {file}")
    number = -1
    for number, row in enumerate(iterate(file)):
        example = to_example(row, config, split, where, number)
        for column, value in zip(columns, (*example.fields.values(), example.label), strict=True):
            column.append(value)
        if len(columns[-1]) == ROWS:
            yield batch()
    if number < 0:
        raise InputError(f"task '{config.name}': {where}: the split is empty; at least one example is needed")
    yield batch()
