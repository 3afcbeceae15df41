"""Where a study's own files are: models, tasks, data and plugins by full paths, as workers elsewhere need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dualscope.core.errors import InputError
from dualscope.models.files.gguf_file import is_gguf
from dualscope.models.files.source import EMBEDDED


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
        except (OSError, RuntimeError):  # too long a name, or the home of nobody: who reads it says so
            return text

    def model(text: str) -> str:
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
