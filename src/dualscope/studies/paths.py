"""Where a study's own files are: models, tasks, data and plugins by full paths, as workers elsewhere need them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError
from dualscope.models.loading.gguf_file import is_gguf
from dualscope.models.loading.source import EMBEDDED


def named_model(text: str) -> tuple[str | None, str]:
    """The name that a study gives a model (None: no name), and what the model is loaded by.

    >>> named_model("mine=models/checkpoint-1000"), named_model("owner/model@main"), named_model("runs/lr=1/last")
    (('mine', 'models/checkpoint-1000'), (None, 'owner/model@main'), (None, 'runs/lr=1/last'))
    """
    name, equals, source = text.partition("=")
    if not equals or "/" in name or Path(text).exists():  # a folder's name may have one
        return None, text
    if not name.strip() or not source.strip():
        raise InputError(f"model '{text}': expected NAME=FOLDER, as in mine=models/checkpoint-1000")
    return name.strip(), source.strip()


LONGEST_NAME = 255  # characters, of a part of a path


def anchored(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A study's fields with the full paths of what there is in a folder; other names stay as they are.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()).resolve()
    >>> (folder / "mine.yaml").touch()
    >>> found = anchored({"tasks": ["mine.yaml", {"task": "sst2", "seeds": 3}], "models": "embedded"}, folder)
    >>> found["tasks"][0] == str(folder / "mine.yaml"), found["tasks"][1], found["models"]
    (True, {'task': 'sst2', 'seeds': 3}, 'embedded')
    """

    def full(text: str) -> str:
        try:
            path = (folder / Path(text).expanduser()).resolve()
            return str(path) if text and path.exists() else text
        except (OSError, RuntimeError):  # too long a name, or the home of an unknown user: an error when it is read
            return text

    def model(text: str) -> str:
        if max(map(len, text.split("/"))) > LONGEST_NAME:
            raise InputError(f"model '{text[:40]}…': a name of {len(text):,} characters is no folder's and no model's")
        called, name = named_model(text)
        path = full(name)
        here = Path(path).is_dir() or is_gguf(Path(path))
        found = path if name != EMBEDDED and path != name and here else name
        return found if called is None else f"{called}={found}"

    def task(name: str) -> str:
        return full(name) if name.endswith((".yaml", ".yml")) else name

    rules = {"models": model, "tasks": task, "data": full, "adapter": full, "plugins": full}
    return {**fields, **{key: _each(fields[key], rule) for key, rule in rules.items() if key in fields}}


def _each(value: Any, rule: Callable[[str], str]) -> Any:
    """The rule on every text of a field: alone, in a list, or as the task of an entry; validation judges the rest."""
    if isinstance(value, str):
        return rule(value)
    if isinstance(value, (list, tuple)):
        return [_each(item, rule) for item in value]
    if isinstance(value, Mapping) and isinstance(value.get("task"), str):
        return {**value, "task": rule(value["task"])}
    return value


# Several models by one name: revisions in braces, folders by a star.


MOST = 1000  # models by one name
_BRACES = re.compile(r"\{([^{}]*)\}")


def all_matching(models: Any, beside: Path | None = None) -> Any:
    """A study's field `models` with each model by its own name; what is no text is left to who validates it."""
    if isinstance(models, str):
        return matching(models, beside)
    if not isinstance(models, (list, tuple)) or not all(isinstance(model, str) for model in models):
        return models
    for model in models:
        if models.count(model) > 1:
            raise InputError(f"models: {model!r} is there twice; name each model once")
    return list(dict.fromkeys(each for model in models for each in matching(model, beside)))


def matching(pattern: str, beside: Path | None = None) -> list[str]:
    """The models that a name with braces or stars stands for, checkpoints in the order of their numbers.

    Folders are looked for ``beside`` the study's file, if there is one, and else in the working folder.

    >>> matching("EleutherAI/pythia-160m@step{1000,4000}")
    ['EleutherAI/pythia-160m@step1000', 'EleutherAI/pythia-160m@step4000']
    >>> matching("embedded")
    ['embedded']
    >>> matching("mine=models/x")
    ['mine=models/x']
    """
    called, source = named_model(pattern)
    names = _alternatives(source)
    found = list(dict.fromkeys(each for name in names for each in _folders(name, pattern, beside)))
    if called is None:
        return found
    if len(found) > 1:
        raise InputError(f"model '{pattern}': one name, and {len(found)} models; give each a name of its own")
    return [f"{called}={found[0]}"]


def _alternatives(text: str) -> list[str]:
    names = [text]
    while _BRACES.search(names[0]):  # all names have the same braces left
        names = [each for name in names for each in _first_braces(name)]
        if len(names) > MOST:
            raise InputError(f"model '{text[:80]}': its braces stand for more than {MOST:,} models")
    return names


def _first_braces(name: str) -> list[str]:
    found = _BRACES.search(name)
    assert found is not None
    before, after = name[: found.start()], name[found.end() :]
    return [before + part.strip() + after for part in found[1].split(",", MOST)]


def _folders(name: str, pattern: str, beside: Path | None) -> list[str]:
    if "*" not in name or os.path.isdir(name):  # a folder may be called so
        return [name]
    if beside is not None and not Path(name).expanduser().is_absolute():
        with suppress(InputError):
            return _folders(str(beside / name), pattern, None)
    if "**" in name:
        raise InputError(
            f"model '{pattern[:80]}': two stars would look through everything below; give one for each folder: */*"
        )
    path = Path(name).expanduser()
    root = Path(path.anchor) if path.is_absolute() else Path()
    try:
        matched = list(root.glob(str(path.relative_to(root))))
    except (OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"model '{pattern}': no pattern of folders ({error})") from None
    found = [folder for folder in matched if folder.is_dir()]
    models = [folder for folder in found if (folder / "config.json").is_file()]
    models += [file for file in matched if is_gguf(file)]
    if not models:
        seen = f"{len(found)} folders match, and none holds a config.json" if found else "no folder matches"
        raise InputError(
            f"model '{pattern}': {seen} (a star stands for folders on this machine, not for names on the hub)"
        )
    return [str(folder) for folder in sorted(models, key=_by_number)]


def _by_number(folder: Path) -> list[tuple[int, str]]:
    """checkpoint-900 before checkpoint-1000."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", str(folder))]
