"""From rows as the data has them to examples as the task wants them: fields renamed, labels numbered."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dualscope.core.errors import InputError
from dualscope.tasks.sources import DataRow, FileRow
from dualscope.tasks.task_config import TaskConfig


@dataclass(frozen=True, slots=True)
class Example:
    """A demonstration or a query: named texts and the index of the right label word.

    >>> Example(id="train:17", fields={"sentence": "a fine film"}, label=1).id
    'train:17'
    """

    id: str  # split and row, stable
    fields: Mapping[str, str]  # after the field mapping: the names that the template uses
    label: int  # index into the label words


FEW = 5  # places that a warning names
Typed = Example | Mapping[str, Any] | tuple[str, str | int]  # an example as a person writes it in Python


def as_row(typed: Typed, config: TaskConfig) -> DataRow:
    """What a person wrote as a row of data: a mapping as it is, a pair as the one field and the label."""
    if isinstance(typed, Example):
        return {
            **{config.columns(field)[0]: text for field, text in typed.fields.items()},
            config.label[0]: config.labels[typed.label],
        }
    if isinstance(typed, Mapping):
        return typed
    if not isinstance(typed, tuple) or len(typed) != 2 or len(config.field_names) != 1:
        fields = ", ".join(f"{name!r}: ..." for name in config.field_names)
        raise InputError(
            f"task '{config.name}': an example is a mapping {{{fields}, '{config.label[0]}': ...}}"
            + (" or a pair (text, label)" if len(config.field_names) == 1 else "")
            + f", found {typed!r}"
        )
    return {config.columns(config.field_names[0])[0]: typed[0], config.label[0]: typed[1]}


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used."""

    where: str  # "line 3"
    why: str
    unlabelled: bool = False  # only its label is missing


class BadRows(InputError):
    """Rows that cannot be used: the message says the first, ``rows`` has all; ``is_whole``: none can be used."""

    def __init__(self, message: str, rows: Sequence[BadRow], where: str, is_whole: bool) -> None:
        super().__init__(message)
        self.rows, self.where, self.is_whole = tuple(rows), where, is_whole


class UnusableRow(InputError):
    """One row's fault."""

    def __init__(self, why: str, unlabelled: bool = False) -> None:
        super().__init__(why)
        self.unlabelled = unlabelled


def to_examples(rows: Iterable[DataRow], config: TaskConfig, split: str, where: str) -> tuple[Example, ...]:
    """``where`` is what an error calls the place the rows came from."""
    return mapped(rows, config, split, where)[0]


def mapped(
    rows: Iterable[DataRow], config: TaskConfig, split: str, where: str
) -> tuple[tuple[Example, ...], tuple[BadRow, ...]]:
    """The examples, and the rows that are left out where ``on_bad_rows: skip`` asks for that.

    A row keeps its number whatever is left out before it, so that ids stay.
    """
    examples: list[Example] = []
    bad: list[BadRow] = []
    empty: list[str] = []
    for number, row in enumerate(rows):
        place = place_of(row, number)
        try:
            example = _made(row, config, split, number)
        except UnusableRow as error:
            bad.append(BadRow(place, str(error), error.unlabelled))
            continue
        if any(not text.strip() for text in example.fields.values()):
            empty.append(place)
        examples.append(example)
    task = f"task '{config.name}'"
    head = task if where == task else f"{task}: {where}"
    if bad and not examples:
        why = bad[0].why
        if all(row.unlabelled for row in bad):
            why = f"the split '{split}' has no labels ({why}); choose another one under `splits`"
        raise BadRows(f"{head}, {bad[0].where}: {why}", bad, where, True)
    if bad and config.on_bad_rows == "stop":
        more = f"; and {len(bad) - 1} more such rows: `dualscope validate` lists them all" if len(bad) > 1 else ""
        skip = "; `on_bad_rows: skip` in the task file leaves such rows out"
        raise BadRows(f"{head}, {bad[0].where}: {bad[0].why}{more}{skip}", bad, where, False)
    if not examples:
        raise InputError(f"{head}: the split is empty; at least one example is needed")
    if bad:
        warnings.warn(f"{head}: {counted(len(bad), 'row')} left out ({_some([r.where for r in bad])})", stacklevel=2)
    if empty:
        warnings.warn(f"{head}: {counted(len(empty), 'text')} empty ({_some(empty)})", stacklevel=2)
    return tuple(examples), tuple(bad)


def counted(n: int, noun: str) -> str:
    """``1 row is``, ``3 rows are``.

    >>> counted(1, "row"), counted(3, "row")
    ('1 row is', '3 rows are')
    """
    return f"{n} {noun}{'s are' if n > 1 else ' is'}"


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:FEW]) + (", ..." if len(places) > FEW else "")


def place_of(row: DataRow, number: int) -> str:
    """Where a row stands: its line in a file, else its number in the data, from 0."""
    return f"{row.unit} {row.line}" if isinstance(row, FileRow) else f"row {number}"


def to_example(row: DataRow, config: TaskConfig, split: str, where: str, number: int) -> Example:
    try:
        return _made(row, config, split, number)
    except UnusableRow as error:
        raise InputError(f"task '{config.name}': {where}, {place_of(row, number)}: {error}") from None


def _made(row: DataRow, config: TaskConfig, split: str, number: int) -> Example:
    if isinstance(row, FileRow) and row.why:
        raise UnusableRow(row.why)
    return Example(
        id=f"{split}:{number}",
        fields={name: _field(row, config, name) for name in config.field_names},
        label=_label(row, config),
    )


def _column(row: DataRow, columns: tuple[str, ...], config: TaskConfig, field: str | None) -> Any:
    """The value of a template's field, or of the label where no field is named."""
    for column in columns:
        if column in row:
            return row[column]
    what = "the label" if field is None else f"the template's {{{field}}}"
    likely = _likely(row, columns[0], config, field)
    line = f"label: {likely}" if field is None else f"fields: {{{field}: {likely}}}"
    raise UnusableRow(
        f"{what} needs the column {' or '.join(map(repr, columns))}; "
        f"found {', '.join(map(str, row)) or 'none'}; name it in the task file, for example `{line}`"
    )


def _likely(row: DataRow, wanted: str, config: TaskConfig, field: str | None) -> str:
    """The column that is probably meant: by its name, else by what stands in it (a label word, the longest text)."""
    taken = {*config.label, *(column for name in config.field_names for column in config.columns(name))}
    left = {str(column): value for column, value in row.items() if column not in taken}
    if near := get_close_matches(wanted, left, n=1):
        return str(near[0])
    if field is None:
        known = [column for column, value in left.items() if to_label(value, config) is not None]
        words = [column for column in known if isinstance(left[column], str) and not left[column].strip().isdigit()]
        return next(iter([*words, *known, *left]), "COLUMN")
    lengths: dict[str, int] = {column: len(value) if isinstance(value, str) else -1 for column, value in left.items()}
    return max(lengths, key=lambda column: lengths[column], default="COLUMN")


def _field(row: DataRow, config: TaskConfig, name: str) -> str:
    value = _column(row, config.columns(name), config, name)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UnusableRow(
                f"field '{name}' has half a character, {value[error.start]!r} "
                f"at position {error.start} (a lone surrogate); write the whole character, or leave it out"
            ) from None
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise UnusableRow(f"field '{name}' must be text, found {value!r}")


def _label(row: DataRow, config: TaskConfig) -> int:
    value = _column(row, config.label, config, None)
    index = to_label(value, config)
    if index is not None:
        return index
    if value is None or value != value or str(value).strip() in ("", "-1"):  # NaN: a frame's way of none
        raise UnusableRow(f"the label is missing (found {value!r})", unlabelled=True)
    accepted = f"0 to {len(config.labels) - 1} or {', '.join(config.labels)}"
    words = list(config.labels)
    if config.label_values is not None:
        words = list(map(str, config.label_values))
        accepted = ", ".join(words)
    meant = [word for word in words if word.casefold() == str(value).strip().casefold()]
    hint = f"; did you mean {meant[0]!r}?" if meant else ""
    raise UnusableRow(f"label {value!r} is outside the label words{hint}; accepted: {accepted}")


def to_label(value: Any, config: TaskConfig) -> int | None:
    """By ``label_values`` where the task has them; else text by label word, and numbers by position."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # what a data frame with a missing value makes of whole numbers
    if config.label_values is not None:
        names = [str(name) for name in config.label_values]
        found = next((one for one in (str(value), str(value).strip()) if one in names), None)
        return None if found is None else names.index(found)
    if isinstance(value, str):
        value = value.strip()  # what a spreadsheet leaves around a word
        if value in config.labels:
            return config.labels.index(value)
        value = int(value) if value.isascii() and value.isdigit() else None
    if isinstance(value, int) and 0 <= value < len(config.labels):
        return int(value)
    return None
