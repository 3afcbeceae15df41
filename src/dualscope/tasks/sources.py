"""Where rows come from: a local file, the hub, a table in memory, a generator."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

import numpy as np

from dualscope.core import network
from dualscope.core.errors import InputError, suggest
from dualscope.core.registry import Registry
from dualscope.core.untrusted_files import reason
from dualscope.tasks.task_config import GeneratorSource, HubSource

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


class HubRows:
    """Data files only: no loading script of a repository is ever run."""

    def __init__(
        self, config: HubSource, folder: Path, labels: tuple[str, ...], named: bool, task: str, offline: bool = False
    ) -> None:
        self.config = config
        self.labels = labels  # the columns that may hold the label
        self.named = named  # give class labels by name, not by number
        self.task = task
        self.offline = offline
        local = folder / config.dataset
        self.local = config.dataset.startswith((".", "/", "~"))
        self.path = str(local.expanduser()) if self.local else config.dataset

    def where(self, split: str) -> str:
        config = f" ({self.config.config})" if self.config.config else ""
        return f"{self.config.dataset}{config}, split {split}"

    def file(self, split: str) -> None:
        return None

    def rows(self, split: str) -> list[DataRow]:
        if self.local and not Path(self.path).is_dir():
            raise InputError(f"task '{self.task}': source.hub.dataset: no such folder: {self.path}")
        with network.offline(self.offline or self.local), _without_bars():
            import datasets

            network.silence()
            network.plain_requests()
            try:
                data = datasets.load_dataset(self.path, self.config.config, split=split, revision=self.config.revision)
            except Exception as error:
                # `datasets` raises whatever its many layers raise (OSError, ValueError, HTTP errors): all of
                # them mean that the data is not at hand, and the person needs to hear what to do.
                raise InputError(self._unreachable(split, error)) from error
        if self.named:
            data = _named(data, self.labels)
        return list(data)

    def _unreachable(self, split: str, error: Exception) -> str:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        place = f"task '{self.task}': {self.where(split)}"
        if self.local:
            return f"{place}: cannot be loaded from {self.path} ({reason})"
        how = (
            f"run once without --offline to fetch it, or put {self.task}/{split}.jsonl (or csv, tsv, "
            f"parquet) in a folder and give it with --data"
        )
        if self.offline:
            return f"{place}: not at hand, and --offline forbids to fetch it ({reason}); {how}"
        how = how.replace("run once without --offline to fetch it", "check the name and the connection")
        return f"{place}: cannot be loaded ({reason}); {how}"


def _named(data: datasets.Dataset, columns: tuple[str, ...]) -> datasets.Dataset:  # type: ignore[name-defined]  # noqa: F821
    """Class labels as their names; -1, which stands for no label, stays."""
    import datasets

    column = next((name for name in columns if name in data.column_names), None)
    feature = data.features.get(column)
    if column is None or not isinstance(feature, datasets.ClassLabel):
        return data
    names = [feature.int2str(value) if value >= 0 else "-1" for value in data[column]]
    return data.remove_columns(column).add_column(column, names)


@contextmanager
def _without_bars() -> Iterator[None]:
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


# Tables that people hold in Python: pandas, polars, Arrow, `Dataset` of datasets. None of them is imported here.


LABELS = ("label", "labels", "class", "target", "category", "sentiment", "y")
"""What a column of labels is usually called."""
MOST_CLASSES = 100


def rows_of(data: Any) -> list[DataRow] | None:
    """The rows of a table, a mapping each; None where it is no table.

    >>> import pandas, polars
    >>> rows_of(pandas.DataFrame({"text": ["a"], "label": [1]})) == rows_of(polars.DataFrame({"text": "a", "label": 1}))
    True
    >>> rows_of([("a", 1)])
    """
    for method, arguments in (("to_dicts", ()), ("to_pylist", ()), ("to_list", ()), ("to_dict", ("records",))):
        if hasattr(data, "columns") or hasattr(data, "column_names"):
            take = getattr(data, method, None)
            if take is not None:
                return list(take(*arguments))
    return None


def label_words(data: Any, column: str) -> list[str] | None:
    """The names of a `ClassLabel` column of datasets, in the order of its numbers."""
    names = getattr(getattr(data, "features", {}).get(column), "names", None)
    return None if names is None else [str(name).replace("_", " ") for name in names]


def label_column(rows: Sequence[DataRow]) -> str:
    """The column that holds the labels: by its name, else the one of few values that come again."""
    columns = list(rows[0])
    by_name = {str(name).casefold(): name for name in columns}
    if found := next((by_name[name] for name in LABELS if name in by_name), None):
        return str(found)
    few = [name for name in columns if 2 <= len({str(row[name]) for row in rows}) <= min(MOST_CLASSES, len(rows) // 2)]
    if len(few) == 1:
        return str(few[0])
    raise InputError(
        f"which column holds the labels cannot be told ({', '.join(map(str, columns))}); say it: label='COLUMN'"
    )


def text_column(rows: Sequence[DataRow], label: str) -> str:
    """The column with the longest texts."""
    lengths: dict[str, int] = {}
    for name in rows[0]:
        texts = [row[name] for row in rows if isinstance(row[name], str)]
        if name != label and texts:
            lengths[str(name)] = sum(map(len, texts))
    if not lengths:
        raise InputError(f"no column of texts beside '{label}' ({', '.join(map(str, rows[0]))})")
    return max(lengths, key=lengths.__getitem__)


def words_in(rows: Sequence[Mapping[str, Any]], label: str) -> list[str]:
    """The labels that are there, as words; numbers are no words."""
    values = [row[label] for row in rows if row[label] is not None and row[label] == row[label]]
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            f"the labels in '{label}' are numbers: give the words they stand for, labels=['Negative', 'Positive']"
        )
    return sorted({value.strip() for value in values} - {""})


# Tasks whose examples are made up: a registry of generators, and the source that calls them.


# How many, and the randomness to use -> that many rows: the template's fields and "label".
Generator = Callable[[int, np.random.Generator], list[dict[str, str | int]]]
GENERATORS: Registry[Generator] = Registry("generator")
"""Functions that make up examples, by the name that a task file gives under ``source: {generator: {name: ...}}``.

>>> import numpy as np
>>> from dualscope import GENERATORS, Task
>>> Task.load("embedded-sst2").train[0].label in (0, 1)  # the generators that we ship are registered when one is used
True
>>> rows = GENERATORS["embedded-sst2"](3, np.random.default_rng(0))
>>> len(rows), sorted(rows[0])
(3, ['label', 'text'])
"""


class GeneratedRows:
    """Both splits come from one call, so a generator that never repeats itself keeps them disjoint."""

    def __init__(self, config: GeneratorSource) -> None:
        self.config = config
        self._rows: list[DataRow] | None = None

    def where(self, split: str) -> str:
        return f"generator '{self.config.name}', split {split}"

    def file(self, split: str) -> None:
        return None

    def rows(self, split: str) -> list[DataRow]:
        if self._rows is None:
            self._rows = self._generate()
        n = self.config.train
        return self._rows[:n] if split == "train" else self._rows[n:]

    def _generate(self) -> list[DataRow]:
        if self.config.name not in GENERATORS:
            import_module("dualscope.tasks.synthetic")  # registers the generators that we ship
        wanted = self.config.train + self.config.evaluation
        rows = GENERATORS[self.config.name](wanted, np.random.default_rng(self.config.seed))
        if len(rows) != wanted:
            raise InputError(f"generator '{self.config.name}' made {len(rows)} examples, {wanted} were asked for")
        return list(rows)
