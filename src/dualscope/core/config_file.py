"""Reading a YAML file into a validated object, with errors that name the file, the line and the field."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from dualscope.core.errors import InputError, suggest

M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]


def read_config(path: Path, model: type[M]) -> M:
    """The YAML file at ``path`` as a ``model``; anything wrong is one :class:`InputError`."""
    data, lines = read_yaml(path)
    return validated(model, data, str(path), lines)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Location, int]]:
    """The mapping in a YAML file, and the line on which each of its fields stands."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = dict(_locate(node, (), set())) if node else {}
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: malformed YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: malformed YAML: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected `field: value` lines, found {_kind(data)}")
    return data, lines


def validated(
    model: type[M], data: Mapping[str, Any], source: str, lines: Mapping[Location, int] | None = None
) -> M:
    """``data`` as a ``model``. ``source`` is what the message calls the place the data came from.

    >>> class Point(BaseModel, extra="forbid"):
    ...     x: int
    >>> validated(Point, {"x": 1, "xs": 2}, "point.yaml")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: point.yaml: unknown field 'xs' (found 2): did you mean x? Known: x.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise InputError(_explain(error, model, source, lines or {})) from None


def _explain(
    error: ValidationError, model: type[BaseModel], source: str, lines: Mapping[Location, int]
) -> str:
    """One thing that is wrong: one message is read, ten are not. A misspelt field explains a missing one."""
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    location: Location = tuple(first["loc"])
    line = next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), None)
    where = f"{source}, line {line}" if line else source
    field = _spell(location)
    if first["type"] == "extra_forbidden":
        owner = _owner(model, location)
        known = suggest(str(location[-1]), owner.model_fields) if owner else "it is not accepted here."
        return f"{where}: unknown field '{field}' (found {_short(first['input'])}): {known}"
    if first["type"] == "missing":
        return f"{where}: field '{field}' is missing"
    if first["type"] == "value_error":  # our own validators say what they found
        message = first["msg"].removeprefix("Value error, ")
        return f"{where}: field '{field}': {message}" if field else f"{where}: {message}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{where}: field '{field}': {message}, found {_short(first['input'])}"


def _owner(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """The model that the unknown field at ``location`` was given to, to list its fields."""
    current: type[BaseModel] | None = model
    for name in location[:-1]:
        if current is None or not isinstance(name, str) or name not in current.model_fields:
            return None
        annotation = current.model_fields[name].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return current


def _locate(node: yaml.Node, path: Location, seen: set[int]) -> Iterator[tuple[Location, int]]:
    """Where every field stands. A key given twice is an error: YAML itself would drop the first."""
    if id(node) in seen:  # an alias: already located, and walking it again could take for ever
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in keys:
                raise yaml.MarkedYAMLError(problem=f"'{name}' is given twice", problem_mark=key.start_mark)
            keys.add(name)
            yield (*path, name), key.start_mark.line + 1
            yield from _locate(value, (*path, name), seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1
            yield from _locate(item, (*path, index), seen)


def _spell(location: Location) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(data: object) -> str:
    return "an empty file" if data is None else f"a {type(data).__name__}"
