"""From rows as the data has them to examples as the task wants them: fields renamed, labels numbered."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from dualscope.core.errors import InputError
from dualscope.tasks.example import Example
from dualscope.tasks.sources import DataRow
from dualscope.tasks.task_config import TaskConfig

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


def to_examples(rows: Iterable[DataRow], config: TaskConfig, split: str, where: str) -> tuple[Example, ...]:
    """``where`` is what an error calls the place the rows came from."""
    examples = tuple(to_example(row, config, split, where, number) for number, row in enumerate(rows))
    if not examples:
        raise InputError(f"task '{config.name}': {where}: the split is empty; at least one example is needed")
    return examples


def to_example(row: DataRow, config: TaskConfig, split: str, where: str, number: int) -> Example:
    place = f"{where}, row {number}"
    return Example(
        id=f"{split}:{number}",
        fields={name: _field(row, config, name, place) for name in config.field_names},
        label=_label(row, config, split, place),
    )


def _column(row: DataRow, columns: tuple[str, ...], config: TaskConfig, field: str | None, where: str) -> Any:
    """The value of a template's field, or of the label where no field is named."""
    for column in columns:
        if column in row:
            return row[column]
    what = "the label" if field is None else f"the template's {{{field}}}"
    taken = {*config.label, *(column for name in config.field_names for column in config.columns(name))}
    left = [str(column) for column in row if column not in taken]
    likely = next(iter(get_close_matches(columns[0], left, n=1)), left[0] if left else "COLUMN")
    line = f"label: {likely}" if field is None else f"fields: {{{field}: {likely}}}"
    raise InputError(
        f"task '{config.name}': {where}: {what} needs the column {' or '.join(map(repr, columns))}; "
        f"found {', '.join(map(str, row)) or 'none'}; name it in the task file, for example `{line}`"
    )


def _field(row: DataRow, config: TaskConfig, name: str, where: str) -> str:
    value = _column(row, config.columns(name), config, name, where)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"task '{config.name}': {where}: field '{name}' has half a character, {value[error.start]!r} "
                f"at position {error.start} (a lone surrogate); write the whole character, or leave it out"
            ) from None
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"task '{config.name}': {where}: field '{name}' must be text, found {value!r}")


def _label(row: DataRow, config: TaskConfig, split: str, where: str) -> int:
    value = _column(row, config.label, config, None, where)
    index = to_label(value, config)
    if index is not None:
        return index
    if value is None or str(value).strip() in ("", "-1"):
        raise InputError(
            f"task '{config.name}': {where}: the split '{split}' has no labels (found {value!r}); "
            f"choose another one under `splits`"
        )
    accepted = f"0 to {len(config.labels) - 1} or {', '.join(config.labels)}"
    if config.label_values is not None:
        accepted = ", ".join(map(str, config.label_values))
    raise InputError(f"task '{config.name}': {where}: label {value!r} is outside the label words; accepted: {accepted}")


def to_label(value: Any, config: TaskConfig) -> int | None:
    """By ``label_values`` where the task has them; else text by label word, and numbers by position."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # what a data frame with a missing value makes of whole numbers
    if config.label_values is not None:
        names = [str(name) for name in config.label_values]
        return names.index(str(value)) if str(value) in names else None
    if isinstance(value, str):
        if value in config.labels:
            return config.labels.index(value)
        value = int(value) if value.strip().isascii() and value.strip().isdigit() else None
    if isinstance(value, int) and 0 <= value < len(config.labels):
        return int(value)
    return None
