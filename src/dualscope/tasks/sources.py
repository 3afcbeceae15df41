"""Where rows come from: a local file (here), the hub (``hub.py``), a generator (``generators.py``)."""

import csv
import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dualscope.core.errors import InputError, suggest

Row = Mapping[str, Any]  # column -> value, as the data has it
FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")


class Source(Protocol):
    """Rows by split, and how an error names the place."""

    def rows(self, split: str) -> list[Row]: ...

    def where(self, split: str) -> str: ...


class FileRows:
    """One file a split, named in the task file."""

    def __init__(self, files: Mapping[str, Path], folder: Path) -> None:
        self.files = {split: folder / path for split, path in files.items()}

    def where(self, split: str) -> str:
        return str(self.files[split])

    def rows(self, split: str) -> list[Row]:
        return read_rows(self.files[split])


class MemoryRows:
    """The same rows whatever the split: examples that were typed or computed."""

    def __init__(self, rows: Sequence[Row], name: str) -> None:
        self._rows, self.name = list(rows), name

    def where(self, split: str) -> str:
        return self.name

    def rows(self, split: str) -> list[Row]:
        return self._rows


class DataFolderRows:
    """``DIR/<task>/<split>.jsonl`` (or csv, tsv, parquet) in place of the hub: the ``--data`` option."""

    def __init__(self, folder: Path, task: str) -> None:
        self.folder = folder / task

    def where(self, split: str) -> str:
        return str(self._path(split))

    def rows(self, split: str) -> list[Row]:
        return read_rows(self._path(split))

    def _path(self, split: str) -> Path:
        if not self.folder.parent.is_dir():
            raise InputError(f"--data {self.folder.parent}: no such folder")
        if not self.folder.is_dir():
            tasks = [path.name for path in self.folder.parent.iterdir() if path.is_dir()]
            raise InputError(f"{self.folder}: no such folder; {suggest(self.folder.name, tasks)}")
        for suffix in FORMATS:
            if (path := self.folder / f"{split}{suffix}").is_file():
                return path
        found = sorted(path.name for path in self.folder.iterdir())
        accepted = ", ".join(f"{split}{suffix}" for suffix in FORMATS)
        raise InputError(f"{self.folder}: needs one of {accepted}; found {', '.join(found) or 'nothing'}")


def read_rows(path: Path) -> list[Row]:
    """All rows of a jsonl, csv, tsv or parquet file."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path}: '{suffix}' files are not read; accepted: {', '.join(FORMATS)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if suffix == ".parquet":
        return _parquet(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if suffix == ".jsonl":
        return _jsonl(path, text)
    return separated(path, text, ",") if suffix == ".csv" else _tsv(path, text)


def _jsonl(path: Path, text: str) -> list[Row]:
    rows: list[Row] = []
    # Not splitlines: texts may hold U+2028 and its kin, which JSON does not escape.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}); is the file cut short?") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected an object {{...}}, found {type(row).__name__}")
        rows.append(row)
    return rows


def _tsv(path: Path, text: str) -> list[Row]:
    """Quoted as CSV is; where the quotes do not pair up, they are plain text, as many TSV files have them."""
    try:
        return separated(path, text, "\t")
    except InputError as error:
        try:
            rows = separated(path, text, "\t", quoted=False)
        except InputError:
            raise error from None
        warnings.warn(f"{path}: the quotes do not pair up, so all are read as plain text", stacklevel=2)
        return rows


def separated(path: Path, text: str, delimiter: str, quoted: bool = True) -> list[Row]:
    reader = csv.reader(
        io.StringIO(text, newline=""),  # lines keep their ends: a quoted text may span several
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    rows: list[Row] = []
    header: list[str] | None = None
    try:
        for values in reader:
            if not values:
                continue
            if header is None:
                header = values
                _check_header(path, header)
            elif len(values) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(values)} columns, the header has {len(header)} "
                    f"({', '.join(header)}); is the file cut short?"
                )
            else:
                rows.append(dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; is a quote left open?") from None
    return rows


def _check_header(path: Path, header: list[str]) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in ",;\t"):
        raise InputError(
            f"{path}, line 1: one column, {header[0]!r}; .csv is separated by commas and .tsv by tabs"
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(
            f"{path}, line 1: the column '{twice[0]}' is there twice ({', '.join(header)}); rename one"
        )


def _parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a whole Parquet file ({reason}); is the file cut short?") from None
    return rows
