"""Reading a YAML file into a validated object, with errors that name the file, the line and the field."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from dualscope.core.errors import InputError, suggest
from dualscope.core.untrusted_files import reading, reason, text_of

LARGEST = 2 * 2**20  # bytes of a file that a person writes
MOST_VALUES = 100_000
LONGEST_NUMBER = 400  # characters
VALUE = "value"

M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]


def read_config(path: Path, model: type[M]) -> M:
    """The YAML file at ``path`` as a ``model``; anything wrong is one :class:`InputError`."""
    data, lines = read_yaml(path)
    return validated(model, data, str(path), lines)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Location, int]]:
    """The mapping in a YAML file, and the line on which each of its fields stands."""
    return parsed_yaml(text_of(path, LARGEST), str(path))


def parsed_yaml(text: str, path: str) -> tuple[dict[str, Any], dict[Location, int]]:
    """The same of a text; ``path`` is what a message calls it."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise InputError(f"{path}: expected `field: value` lines, found an empty file")
        _check_size(node)
        lines = dict(_locate(node, (), set()))
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: malformed YAML: {error.problem}") from None
    except InputError:
        raise
    except Exception as error:  # a date that is none, a number of thousands of digits, a list as a key
        raise InputError(f"{path}: malformed YAML: {reason(error)}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected `field: value` lines, found {_kind(data)}")
    _check_texts(data, path)
    return data, lines


def parsed_value(text: str, option: str) -> Any:
    """What a value on the command line means, as in a file; ``option`` is what a message calls it."""
    found, _ = parsed_yaml(f"{VALUE}: {text}", option)
    if found.keys() != {VALUE}:
        raise InputError(f"{option}: '{text[:60]}' is more than one value")
    return found[VALUE]


def check_head(text: str, path: str) -> None:
    """Refuse a text whose first YAML document (a model card's head) would be the work of hours to unfold."""
    with reading(f"{path}: the fields at its head"):
        loader = yaml.SafeLoader(text)
        node = loader.get_node() if loader.check_node() else None  # the document before the second `---`
        if node is not None:
            _check_size(node)


def _check_size(root: yaml.Node) -> None:
    """Refuse aliases that stand for more than a person would write, before anything is made of them.

    Ten lines of aliases of aliases can stand for a billion values, or for themselves.
    """
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_:
            raise yaml.MarkedYAMLError(problem="an alias refers to itself", problem_mark=node.start_mark)
        if id(node) in sizes:
            return sizes[id(node)]
        open_.add(id(node))
        if isinstance(node, yaml.MappingNode):
            total = sum(size(key) + size(value) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total = sum(size(item) for item in node.value)
        else:
            total = 1
            if node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
                problem = f"a number of {len(node.value)} characters"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        if total > MOST_VALUES:
            problem = f"its aliases stand for more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        open_.discard(id(node))
        sizes[id(node)] = total
        return total

    size(root)


def validated(model: type[M], data: Mapping[str, Any], source: str, lines: Mapping[Location, int] | None = None) -> M:
    """``data`` as a ``model``. ``source`` is what the message calls the place the data came from.

    >>> class Point(BaseModel, extra="forbid"):
    ...     x: int
    >>> validated(Point, {"x": 1, "xs": 2}, "point.yaml")
    Traceback (most recent call last):
    dualscope.core.errors.InputError: point.yaml: unknown field 'xs' (found 2): did you mean x? Known: x.
    """
    _check_texts(data, source)
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise InputError(_explain(error, model, source, lines or {})) from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply") from None


def _check_texts(data: Any, source: str) -> None:
    """Half characters and NULs can be neither written nor be part of a file's name."""
    waiting: list[tuple[Location, Any]] = [((), data)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [((*where, "a key"), key) for key in value] + [((*where, str(k)), v) for k, v in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += [((*where, i), item) for i, item in enumerate(value)]
        elif isinstance(value, str) and ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value)):
            what = "a NUL" if "\0" in value else "half a character (a lone surrogate)"
            raise InputError(f"{source}: field '{_spell(where)}': has {what} in it, found {_short(value)}")


def _explain(error: ValidationError, model: type[BaseModel], source: str, lines: Mapping[Location, int]) -> str:
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
    """As it would be written; never the whole of something large."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**60:
        return "a number of more than 60 digits"
    text = repr(value[:61] if isinstance(value, str | list | tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(data: object) -> str:
    return "an empty file" if data is None else f"a {type(data).__name__}"
