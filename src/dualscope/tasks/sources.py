"""Where rows come from: a local file (here), the hub (``hub.py``), a generator (``generators.py``)."""

import csv
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from dualscope.core.errors import InputError, suggest
from dualscope.core.untrusted_files import reason

DataRow = Mapping[str, Any]  # column -> value, as the data has it


class FileRow(dict[str, Any]):
    """A row of a file: it knows its line (in Parquet its row, from 1), and why it could not be read, if so."""

    def __init__(self, values: Mapping[str, Any], line: int, why: str = "", unit: str = "line") -> None:
        super().__init__(values)
        self.line, self.why, self.unit = line, why, unit


LARGE = 64 * 2**20  # bytes from which a file's rows are not held in memory
FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")


class RowSource(Protocol):
    """Rows by split, and how an error names the place."""

    def rows(self, split: str) -> list[DataRow]: ...

    def where(self, split: str) -> str: ...

    def file(self, split: str) -> Path | None:
        """The one file that holds them, where there is one: it may be larger than memory."""


class FileRows:
    """One file a split, named in the task file."""

    def __init__(self, files: Mapping[str, Path], folder: Path) -> None:
        self.files = {split: folder / path for split, path in files.items()}

    def where(self, split: str) -> str:
        return str(self.files[split])

    def rows(self, split: str) -> list[DataRow]:
        return read_rows(self.files[split])

    def file(self, split: str) -> Path:
        return self.files[split]


class MemoryRows:
    """The same rows whatever the split: examples that were typed or computed."""

    def __init__(self, rows: Sequence[DataRow], name: str) -> None:
        self._rows, self.name = list(rows), name

    def where(self, split: str) -> str:
        return self.name

    def rows(self, split: str) -> list[DataRow]:
        return self._rows

    def file(self, split: str) -> None:
        return None


class DataFolderRows:
    """``DIR/<task>/<split>.jsonl`` (or csv, tsv, parquet) in place of the hub: the ``--data`` option."""

    def __init__(self, folder: Path, task: str) -> None:
        self.folder = folder / task

    def where(self, split: str) -> str:
        return str(self._path(split))

    def rows(self, split: str) -> list[DataRow]:
        return read_rows(self._path(split))

    def file(self, split: str) -> Path:
        return self._path(split)

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


def is_large(path: Path) -> bool:
    try:
        return path.stat().st_size > LARGE
    except OSError:
        return False  # who reads it says why


def read_rows(path: Path) -> list[DataRow]:
    """All rows of a jsonl, csv, tsv or parquet file."""
    return list(iterate(path))


def iterate(path: Path) -> Iterator[DataRow]:
    """The same one after another, whatever the size of the file."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path}: '{suffix}' files are not read; accepted: {', '.join(FORMATS)}")
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    if suffix == ".parquet":
        yield from _parquet(path)
    elif suffix == ".jsonl":
        yield from _jsonl(path)
    elif suffix == ".csv":
        yield from _separated(path, ",")
    else:
        yield from _tsv(path)


@contextmanager
def _text(path: Path, newline: str) -> Iterator[TextIO]:
    """A file's text as a stream; ``newline`` says what ends a line."""
    try:
        with open(path, encoding="utf-8-sig", newline=newline) as stream:
            yield stream
    except UnicodeDecodeError:
        with open(path, "rb") as file:
            start = _bad_byte(file)
        raise InputError(f"{path}: not UTF-8 (byte {start}); save the file as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None


def _bad_byte(file: BinaryIO) -> int:
    """Where a file stops being UTF-8."""
    start = 0
    for line in file:  # no character of several bytes has a line's end in it
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return start + error.start
        start += len(line)
    return start


def _jsonl(path: Path) -> Iterator[DataRow]:
    with _text(path, "\n") as lines:  # LF alone: texts may hold U+2028 and its kin
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_once_each)
            except InputError as error:
                yield FileRow({}, number, str(error))
            except (ValueError, RecursionError) as error:
                yield FileRow({}, number, f"not JSON ({reason(error)}); is the file cut short?")
            else:
                is_object = isinstance(row, dict)
                why = "" if is_object else f"expected an object {{...}}, found {type(row).__name__}"
                yield FileRow(row if is_object else {}, number, why)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no field is there twice: JSON itself would take the last one without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the field '{twice}' is there twice; rename one")
    return found


def _tsv(path: Path) -> Iterator[DataRow]:
    """Quoted as CSV is; where the quotes do not pair up, they are plain text, as many TSV files have them."""
    quoted = True
    try:
        _all_whole(_separated(path, "\t"), path)
    except InputError as error:
        try:
            _all_whole(_separated(path, "\t", quoted=False), path)
        except InputError:
            if _is_broken(error):
                raise error from None
            yield from _separated(path, "\t")  # some of its rows are at fault, not the quotes
            return
        quoted = False
        warnings.warn(f"{path}: the quotes do not pair up, so all are read as plain text", stacklevel=2)
    yield from _separated(path, "\t", quoted)


def _all_whole(rows: Iterable[DataRow], path: Path) -> None:
    for row in rows:
        if isinstance(row, FileRow) and row.why:
            raise InputError(f"{path}, line {row.line}: {row.why}")


def _is_broken(error: InputError) -> bool:
    """Whether the file cannot be read on, rather than having rows that cannot be used."""
    return isinstance(error.__cause__, csv.Error)


def _separated(path: Path, delimiter: str, quoted: bool = True) -> Iterator[DataRow]:
    with _text(path, "") as stream:
        yield from separated(path, stream, delimiter, quoted)


def separated(path: Path, stream: Iterable[str], delimiter: str, quoted: bool = True) -> Iterator[DataRow]:
    """Rows of lines that keep their ends: a quoted text may span several."""
    header: list[str] | None = None
    reader = csv.reader(
        stream, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
    try:
        line = 1
        for values in reader:
            begun, line = line, reader.line_num + 1  # a quoted text may span several
            if not values:
                continue
            if header is None:
                header = values
                _check_header(path, header)
            elif len(values) != len(header):
                why = (
                    f"{len(values)} columns, the header has {len(header)} ({', '.join(header)}); is the file cut short?"
                )
                yield FileRow({}, begun, why)
            else:
                yield FileRow(dict(zip(header, values, strict=True)), begun)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; is a quote left open?") from error


def _check_header(path: Path, header: list[str]) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in ",;\t"):
        raise InputError(f"{path}, line 1: one column, {header[0]!r}; .csv is separated by commas and .tsv by tabs")
    _check_columns(f"{path}, line 1", header)


def _check_columns(where: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{where}: the column '{twice[0]}' is there twice ({', '.join(names)}); rename one")


def _parquet(path: Path) -> Iterator[DataRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        _check_columns(str(path), file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield FileRow(row, number, unit="row")
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a whole Parquet file ({reason(error)}); is the file cut short?") from None
